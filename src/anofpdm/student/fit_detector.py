"""Fit a student's detector to image-level labels."""

import numpy as np
import torch
from torch import Tensor

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.calibration.scan_labels import estimate_labels
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.detection import Accuracy, CurveDetector, fit_and_validate
from anofpdm.method.mask import smallest_pixels
from anofpdm.student.decide import DETECTION_MM, SPAN, StudentCalibration, detection_values, map_scans
from anofpdm.student.predict import predict_passes
from anofpdm.student.student_network import StudentNet, cohort_pixels, neighbour_rows


def fit_student_calibration(network: StudentNet, cohort: Cohort, device: torch.device) -> StudentCalibration:
    """Fit the detector to image-level labels of the validation split, by both outputs: of one that does not separate
    the labels, as that of whole slices if no training slice was labelled unhealthy, the weight is small. Labels of
    suspected slices, unlabelled ones of unhealthy scans, are estimated first."""
    val = cohort.rows("val")
    labels, patients, suspected = cohort.labels[val], cohort.patients[val], cohort.suspected[val]
    pixels, positions = cohort_pixels(cohort, val, network.config.modalities), slice_positions(cohort, val)
    lesion_pixels = max(1, smallest_pixels((network.config.size,) * 2))

    def values_of_scan(passes: Tensor, slice_passes: Tensor, heights_mm: Tensor) -> list[Tensor]:
        logits = passes.mean(dim=1), slice_passes.mean(dim=1)
        return [detection_values(*logits, heights_mm, DETECTION_MM, lesion_pixels)]

    rows = neighbour_rows(positions, network.config.neighbours_mm)
    (values,) = map_scans(values_of_scan, positions, *predict_passes(network, pixels, rows, device))
    # Not rated by estimated labels, which come from the values they would rate. Assumed ones rate too low.
    has_both = {HEALTHY, UNHEALTHY} <= set(labels.tolist())
    detector, rating = _fit(values, labels if has_both else np.where(suspected, UNHEALTHY, labels), patients)
    if suspected.any():
        labels = estimate_labels(detector.scores(values), labels, suspected, positions.scans)
        detector, _ = _fit(values, labels, patients)
    return StudentCalibration(
        detector,
        rating.accuracy,
        rating.auc,
        n_healthy=int((labels == HEALTHY).sum()),
        n_unhealthy=int((labels == UNHEALTHY).sum()),
        n_estimated=int(suspected.sum()),
        faint_span=SPAN,
    )


def _fit(values: np.ndarray, labels: np.ndarray, patients: np.ndarray) -> tuple[CurveDetector, Accuracy]:
    """Of the labelled slices."""
    labelled = labels != NULL
    return fit_and_validate(values[labelled], labels[labelled] == UNHEALTHY, patients[labelled])
