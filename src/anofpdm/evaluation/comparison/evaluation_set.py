"""The slices that methods are scored on, with their ground truth."""

from dataclasses import dataclass

import numpy as np

from anofpdm.cohorts.store import Cohort, foreground
from anofpdm.errors import EvaluationError
from anofpdm.evaluation.comparison.names import SETUPS, Setup
from anofpdm.evaluation.comparison.scores import GroundTruth
from anofpdm.evaluation.truth import Truth

CHUNK = 500  # slices read at once


@dataclass(frozen=True)
class EvaluationSet:
    rows: np.ndarray  # [n], in the cohort's order
    truth: GroundTruth

    @property
    def setups(self) -> tuple[Setup, ...]:
        """Without any lesion there is no unhealthy setup."""
        return SETUPS if self.truth.unhealthy.any() else (Setup.MIXED,)

    def positions(self, setup: Setup) -> slice | np.ndarray:
        """Positions of a setup's slices. All of them are a slice object, which does not copy arrays."""
        return np.flatnonzero(self.truth.unhealthy) if setup == Setup.UNHEALTHY else slice(None)

    def example_positions(self, most: int) -> np.ndarray:
        """Positions of unhealthy slices for the figure, from the smallest lesion to the largest."""
        areas = self.truth.masks.sum(axis=(1, 2))
        by_area = np.argsort(areas, kind="stable")[int((areas == 0).sum()) :]
        count = min(most, len(by_area))
        return by_area[np.linspace(0, len(by_area) - 1, count).round().astype(int)]


def load_evaluation_set(cohort: Cohort, rows: np.ndarray) -> EvaluationSet:
    chunks = np.array_split(rows, -(-len(rows) // CHUNK))
    inside = np.concatenate([foreground(cohort.pixels(chunk)) for chunk in chunks])
    masks = Truth(cohort).masks(rows)
    return EvaluationSet(rows, GroundTruth(masks, inside, cohort.patients[rows], cohort.pixel_mm[rows]))


def sample_rows(cohort: Cohort, split: str, most: int | None, seed: int) -> np.ndarray:
    """Every slice of scans with a lesion mask, once; or a random sample of them, without replacement."""
    rows = cohort.rows(split)
    rows = rows[Truth(cohort).available[rows]]
    if not len(rows):
        raise EvaluationError(f"{cohort.path}: no slice of the {split!r} split has a lesion mask")
    if most is None or most >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
