"""Fit a student's detector to image-level labels."""

import numpy as np
import torch

from anofpdm.errors import CalibrationError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import Accuracy, CurveDetector, fit_and_validate
from anofpdm.method.scan_labels import estimate_labels
from anofpdm.student.faint import SPAN
from anofpdm.student.predict import predict_slices
from anofpdm.student.student import DetectBy, StudentCalibration, detection_values
from anofpdm.student.student_network import Pixels, StudentNet


def fit_student_calibration(
    network: StudentNet,
    pixels: Pixels,
    labels: np.ndarray,
    patients: np.ndarray,
    positions: SlicePositions,
    device: torch.device,
    suspected: np.ndarray | None = None,
) -> StudentCalibration:
    """Fit the detector to image-level labels, by both outputs: of one that does not separate the labels, as that of
    whole slices if no training slice was labelled unhealthy, the weight is small. Labels of suspected slices [n],
    unlabelled ones of unhealthy scans, are estimated first."""
    suspected = np.zeros(len(labels), bool) if suspected is None else suspected
    assumed = np.where(suspected, UNHEALTHY, labels)
    if not _has_both(assumed):
        raise CalibrationError("a student is calibrated on healthy and unhealthy slices, and one kind is missing")
    logits = predict_slices(network, pixels, positions, device)
    values = detection_values(DetectBy.BOTH, *logits, positions)
    # Not rated by estimated labels, which come from the values they would rate. Assumed ones rate too low.
    detector, rating = _fit(values, labels if _has_both(labels) else assumed, patients)
    if suspected.any():
        labels = estimate_labels(detector.scores(values), labels, suspected, positions.scans)
        detector, _ = _fit(values, labels, patients)
    return StudentCalibration(
        detector=detector,
        accuracy=rating.accuracy,
        auc=rating.auc,
        n_healthy=int((labels == HEALTHY).sum()),
        n_unhealthy=int((labels == UNHEALTHY).sum()),
        detect_by=DetectBy.BOTH,
        n_estimated=int(suspected.sum()),
        faint_span=SPAN,
    )


def _has_both(labels: np.ndarray) -> bool:
    return {HEALTHY, UNHEALTHY} <= set(labels.tolist())


def _fit(values: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> tuple[CurveDetector, Accuracy]:
    """Of the labelled slices."""
    labelled = labels != NULL
    return fit_and_validate(values[labelled], labels[labelled] == UNHEALTHY, patients[labelled])
