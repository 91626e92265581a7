"""The slices that ablations are measured on, and the results of the first pass."""

from dataclasses import dataclass, replace

import numpy as np

from anofpdm.calibration.fit import CalibrationConfig, FittedCalibration, labelled_rows
from anofpdm.cohorts.store import Cohort, foreground
from anofpdm.errors import EvaluationError
from anofpdm.evaluation.metrics.pixels import dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import Decisions, DecisionSettings
from anofpdm.method.evidence import Evidence
from anofpdm.options import Detector

NO_DETECTOR = DecisionSettings(detector=Detector.NONE)
CHUNK = 200  # slices read at once


@dataclass(frozen=True)
class Study:
    cohort: Cohort
    rows: np.ndarray  # [N]
    lesions: np.ndarray  # bool [N, H, W]
    calibrated: FittedCalibration
    decisions: Decisions  # at w*, without a detector

    @property
    def unhealthy(self) -> np.ndarray:
        """Indices of the slices with a lesion, [U]."""
        return np.flatnonzero(self.lesions.any(axis=(1, 2)))

    def unhealthy_dice(self, masks: np.ndarray) -> float:
        """Of masks [U, H, W]."""
        return float(dice(masks, self.lesions[self.unhealthy]).mean())

    def unhealthy_foreground(self) -> np.ndarray:
        """[U, H, W]."""
        rows = self.rows[self.unhealthy]
        chunks = [foreground(self.cohort.pixels(rows[at : at + CHUNK])) for at in range(0, len(rows), CHUNK)]
        return np.concatenate(chunks)

    def unhealthy_evidence(self, calibrated: FittedCalibration) -> tuple[Evidence, Calibration]:
        """Of slices with a lesion, at the chosen strength."""
        at_chosen = calibrated.evidence.at(calibrated.calibration.strength)
        return at_chosen.map(lambda tensor: tensor[self.unhealthy]), calibrated.calibration


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
    n_unhealthy, lesions = int((cohort.labels[rows] == UNHEALTHY).sum()), truth.masks(rows)
    if n_unhealthy in (0, len(rows)) or not lesions.any():
        raise EvaluationError(
            f"{cohort.path}: need both classes and a lesion, got {len(rows) - n_unhealthy} healthy and {n_unhealthy} "
            f"unhealthy slices, {int(lesions.any(axis=(1, 2)).sum())} with a lesion mask, in the {config.split!r} "
            "split; choose another --split, or a larger --most"
        )
    return measured, rows, lesions
