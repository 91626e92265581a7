"""How well a model separates healthy from unhealthy slices of its validation patients."""

import math
from dataclasses import dataclass

import numpy as np

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.options import Split
from anofpdm.scoring.burden import BurdenGroup, detected_by_burden
from anofpdm.student.student import Student
from anofpdm.student.student_network import cohort_pixels

WEAK, GOOD = 0.7, 0.9  # AUC
FEW_PATIENTS = 10


@dataclass(frozen=True)
class DetectorRating:
    """On held-out validation patients; NaN where there is only one."""

    name: str
    accuracy: float
    auc: float


@dataclass(frozen=True)
class Abilities:
    detectors: tuple[DetectorRating, ...]  # the one in use last
    n_healthy: int
    n_unhealthy: int
    counts: tuple[tuple[str, int, str], ...]  # label, slices, slices called unhealthy by the student
    by_burden: tuple[BurdenGroup, ...]
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        used = self.detectors[-1]
        if math.isnan(used.auc):
            return "Not known: all validation slices are of one patient."
        start = f"The {used.name} separates the labels with an AUC of {used.auc:.3f}"
        if used.auc < WEAK:
            return f"{start}; 0.5 is chance. Do not use the masks: train longer, or check the labels."
        if used.auc < GOOD:
            return f"{start}. It misses many unhealthy slices or marks many healthy ones; check each mask."
        return f"{start}. That is a good detector; whether the masks are accurate is not known from labels."


def rate_model(cohort: Cohort, calibration: Calibration, student: Student | None) -> Abilities:
    cosine = calibration.cosine_accuracy
    ratings = [DetectorRating("cosine detector (the paper's)", cosine.accuracy, cosine.auc)]
    for fit in calibration.fitted:
        name = "curve detector" + (f", smoothed over {fit.context_mm:g} mm" if fit.context_mm else "")
        ratings.append(DetectorRating(name, fit.curve_accuracy.accuracy, fit.curve_accuracy.auc))
    counts: list[tuple[str, int, str]] = []
    burden: list[BurdenGroup] = []
    if student is not None:
        rating = student.calibration
        ratings.append(DetectorRating("student", rating.accuracy, rating.auc))
        rows = cohort.rows(Split.VAL)
        pixels = cohort_pixels(cohort, rows, student.config.modalities)
        detected = student.decide(pixels, slice_positions(cohort, rows)).detected
        counts, burden = _count_found(cohort, rows, detected), detected_by_burden(cohort, rows, detected)
    warnings = _warnings(cohort, calibration)
    return Abilities(
        tuple(ratings), calibration.n_healthy, calibration.n_unhealthy, tuple(counts), tuple(burden), tuple(warnings)
    )


def _count_found(cohort: Cohort, rows: np.ndarray, detected: np.ndarray) -> list[tuple[str, int, str]]:
    labels, suspected = cohort.labels[rows], cohort.suspected[rows]
    kinds = {"healthy": labels == HEALTHY, "unhealthy": labels == UNHEALTHY}
    kinds |= {"unlabelled, of unhealthy scans": suspected} if suspected.any() else {}
    counts = []
    for name, chosen in kinds.items():
        n_slices, n_detected = int(chosen.sum()), int(detected[chosen].sum())
        counts.append((name, n_slices, f"{n_detected} ({n_detected / max(n_slices, 1):.0%})"))
    return counts


def _warnings(cohort: Cohort, calibration: Calibration) -> list[str]:
    labelled = [set(cohort.labels[cohort.patients == name].tolist()) for name in np.unique(cohort.patients)]
    cases = {
        f"These numbers are of {calibration.n_patients} validation patients and can be far off for others; label more "
        "patients.": calibration.n_patients < FEW_PATIENTS,
        "No patient has both healthy and unhealthy slices. Anything that differs between the two groups of patients, "
        "such as the scanner, may be what is detected; label healthy slices of unhealthy patients too.": not any(
            {HEALTHY, UNHEALTHY} <= labels for labels in labelled
        ),
        "Labels of slices were estimated from those of whole scans, so the numbers below are rough; label more "
        "slices.": bool(calibration.n_estimated),
    }
    return [text for text, applies in cases.items() if applies]
