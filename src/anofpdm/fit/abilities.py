"""How well a model separates healthy from unhealthy slices of its validation patients."""

import math

import numpy as np

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.choices import Split
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.detection import Accuracy
from anofpdm.student.decide import StudentCalibration
from anofpdm.student.student import Student
from anofpdm.student.student_network import cohort_pixels

WEAK, GOOD = 0.7, 0.9  # AUC
FEW_PATIENTS = 10


def rate_detectors(calibration: Calibration, student: Student | None) -> dict[str, Accuracy | StudentCalibration]:
    """Accuracy and AUC on held-out validation patients, by name of the detector; the last one is in use."""
    ratings: dict[str, Accuracy | StudentCalibration] = {"cosine detector (the paper's)": calibration.cosine_accuracy}
    for fit in calibration.fitted:
        name = "curve detector" + (f", smoothed over {fit.context_mm:g} mm" if fit.context_mm else "")
        ratings[name] = fit.curve_accuracy
    if student is not None:
        ratings["student"] = student.calibration
    return ratings


def judge(name: str, auc: float) -> str:
    """What the AUC of a detector means for its masks; NaN where there is only one validation patient."""
    if math.isnan(auc):
        return "Not known: all validation slices are of one patient."
    start = f"The {name} separates the labels with an AUC of {auc:.3f}"
    if auc < WEAK:
        return f"{start}; 0.5 is chance. Do not use the masks: train longer, or check the labels."
    if auc < GOOD:
        return f"{start}. It misses many unhealthy slices or marks many healthy ones; check each mask."
    return f"{start}. That is a good detector; whether the masks are accurate is not known from labels."


def detect_validation_slices(cohort: Cohort, student: Student) -> np.ndarray:
    """bool, whether the student calls each slice of the validation split unhealthy."""
    rows = cohort.rows(Split.VAL)
    pixels = cohort_pixels(cohort, rows, student.config.modalities)
    return student.decide(pixels, slice_positions(cohort, rows)).detected


def count_detected(cohort: Cohort, detected: np.ndarray) -> list[tuple[str, int, int]]:
    """Of the validation slices: label, number, number of detected ones."""
    rows = cohort.rows(Split.VAL)
    labels, suspected = cohort.labels[rows], cohort.suspected[rows]
    kinds = {"healthy": labels == HEALTHY, "unhealthy": labels == UNHEALTHY}
    kinds |= {"unlabelled, of unhealthy scans": suspected} if suspected.any() else {}
    return [(name, int(chosen.sum()), int(detected[chosen].sum())) for name, chosen in kinds.items()]


def label_warnings(cohort: Cohort, calibration: Calibration) -> list[str]:
    """Why ratings may be far off."""
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
