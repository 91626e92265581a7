"""The slices that ablations are measured on, and the results of the first pass."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from anofpdm.calibration.fit_calibration import CalibrationConfig, LabelledEvidence, labelled_rows
from anofpdm.choices import Detector
from anofpdm.cohorts.store import Cohort, foreground
from anofpdm.errors import EvaluationError
from anofpdm.labels import UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import Decisions, DecisionSettings
from anofpdm.method.evidence import Evidence
from anofpdm.network.predictor import TrainedModel
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.scoring.truth import Truth
from anofpdm.util.distributed import World
from anofpdm.util.progress import Progress

NO_DETECTOR = DecisionSettings(detector=Detector.NONE)
CHUNK = 200  # slices read at once
GALLERY_SLICES, GALLERY_LEVELS = 4, 6


@dataclass(frozen=True)
class Study:
    model: TrainedModel
    options: CalibrationConfig
    cohort: Cohort
    rows: np.ndarray  # [N]
    lesions: np.ndarray  # bool [N, H, W]
    gathered: LabelledEvidence
    calibration: Calibration
    decisions: Decisions  # at w*, without a detector
    gallery_levels: tuple[int, ...]  # shown in the gallery, in addition to each slice's end step
    progress: Progress
    world: World

    @functools.cached_property
    def unhealthy(self) -> np.ndarray:
        """Indices of the slices with a lesion, [U]."""
        return np.flatnonzero(self.lesions.any(axis=(1, 2)))

    @functools.cached_property
    def foreground(self) -> np.ndarray:
        """Of the slices with a lesion, bool [U, H, W]."""
        rows = self.rows[self.unhealthy]
        chunks = [foreground(self.cohort.pixels(rows[at : at + CHUNK])) for at in range(0, len(rows), CHUNK)]
        return np.concatenate(chunks)

    @functools.cached_property
    def gallery(self) -> list[int]:
        """Among slices with a lesion: the largest lesion and some smaller ones, from different scans if possible."""
        sizes, scans = self.lesions[self.unhealthy].sum(axis=(1, 2)), self.cohort.scans[self.rows[self.unhealthy]]
        by_size, chosen = np.argsort(sizes, kind="stable"), list[int]()
        for place in np.linspace(1, 0.25, min(GALLERY_SLICES, len(sizes))) * (len(sizes) - 1):
            nearest = by_size[np.argsort(np.abs(np.arange(len(sizes)) - place), kind="stable")]
            left = [int(number) for number in nearest if number not in chosen]
            chosen.append(next((number for number in left if scans[number] not in scans[chosen]), left[0]))
        return chosen

    def unhealthy_dice(self, masks: np.ndarray) -> float:
        """Of masks [U, H, W]."""
        return float(dice(masks, self.lesions[self.unhealthy]).mean())

    def unhealthy_evidence(self, gathered: LabelledEvidence, calibration: Calibration) -> tuple[Evidence, Calibration]:
        """Of slices with a lesion, at the chosen strength."""
        return gathered.evidence.at(calibration.strength)[torch.from_numpy(self.unhealthy)], calibration


def choose_levels(levels: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The levels nearest to those wanted; by default some, evenly spaced."""
    available = np.array(levels)
    fractions = np.arange(1, GALLERY_LEVELS + 1) / GALLERY_LEVELS
    spread = available[np.maximum(np.round(fractions * len(available)).astype(int) - 1, 0)]
    targets = np.array(wanted or spread)
    nearest = available[np.abs(available[None] - targets[:, None]).argmin(axis=1)]
    return tuple(int(level) for level in np.unique(nearest))


def measured_slices(cohort: Cohort, config: CalibrationConfig) -> tuple[Cohort, np.ndarray, np.ndarray]:
    """The cohort without scans that have no lesion mask, its labelled rows, and their masks."""
    truth = Truth(cohort)
    measured = replace(cohort, splits=np.where(truth.available, cohort.splits, ""))
    if not len(measured.rows(config.split)):
        raise EvaluationError(
            f"{cohort.path}: no scan of the {config.split!r} split has a lesion mask; choose another --split, or "
            "prepare the cohort with masks"
        )
    rows = labelled_rows(measured, config.split, config.most, config.seed)
    n_unhealthy, lesions = int((cohort.assumed_labels[rows] == UNHEALTHY).sum()), truth.masks(rows)
    if n_unhealthy in (0, len(rows)) or not lesions.any():
        raise EvaluationError(
            f"{cohort.path}: need both classes and a lesion, got {len(rows) - n_unhealthy} healthy and {n_unhealthy} "
            f"unhealthy slices, {int(lesions.any(axis=(1, 2)).sum())} with a lesion mask, in the {config.split!r} "
            "split; choose another --split, or a larger --most"
        )
    return measured, rows, lesions
