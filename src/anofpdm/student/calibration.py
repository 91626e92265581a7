"""Fit a student's detector to image-level labels."""

import numpy as np
import torch

from anofpdm.errors import CalibrationError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import Accuracy, CurveDetector, fit_and_validate
from anofpdm.method.scan_labels import estimate_labels
from anofpdm.student.model import DetectBy, StudentCalibration, detection_values, predict_slices
from anofpdm.student.network import Pixels, StudentNet

MIN_AUC_GAIN = 0.02  # by which pixels must detect better than the slice output to be used


def fit_student_calibration(
    network: StudentNet,
    pixels: Pixels,
    labels: np.ndarray,
    patients: np.ndarray,
    positions: SlicePositions,
    device: torch.device,
    suspected: np.ndarray | None = None,
) -> StudentCalibration:
    """Fit the detector to image-level labels. It uses the slice output, unless pixels separate the labels clearly
    better, as they do if no training slice was labelled unhealthy. Labels of suspected slices [n], unlabelled ones of
    unhealthy scans, are estimated first."""
    suspected = np.zeros(len(labels), bool) if suspected is None else suspected
    assumed = np.where(suspected, UNHEALTHY, labels)
    if not _has_both(assumed):
        raise CalibrationError("a student is calibrated on healthy and unhealthy slices, and one kind is missing")
    logits = predict_slices(network, pixels, positions, device)
    values = {detect_by: detection_values(detect_by, *logits, positions) for detect_by in DetectBy}
    # Not rated by estimated labels, which come from the values they would rate. Assumed ones rate too low.
    rated_by = labels if _has_both(labels) else assumed
    fits = {detect_by: _fit(values[detect_by], rated_by, patients) for detect_by in DetectBy}
    gain = fits[DetectBy.PIXELS][1].auc > fits[DetectBy.SLICE][1].auc + MIN_AUC_GAIN
    detect_by = DetectBy.PIXELS if gain else DetectBy.SLICE
    detector, rating = fits[detect_by]
    if suspected.any():
        labels = estimate_labels(values[detect_by], labels, suspected, positions.scans)
        detector, _ = _fit(values[detect_by], labels, patients)
    return StudentCalibration(
        detector=detector,
        accuracy=rating.accuracy,
        auc=rating.auc,
        n_healthy=int((labels == HEALTHY).sum()),
        n_unhealthy=int((labels == UNHEALTHY).sum()),
        detect_by=detect_by,
        n_estimated=int(suspected.sum()),
    )


def _has_both(labels: np.ndarray) -> bool:
    return {HEALTHY, UNHEALTHY} <= set(labels.tolist())


def _fit(values: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> tuple[CurveDetector, Accuracy]:
    """Of the labelled slices."""
    labelled = labels != NULL
    return fit_and_validate(values[labelled, None], labels[labelled] == UNHEALTHY, patients[labelled])
