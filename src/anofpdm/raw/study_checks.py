"""Geometric checks of a prepared study. What fails is named, and the study is not segmented."""

from pathlib import Path

import numpy as np

from anofpdm.errors import ScanError, warn_scan
from anofpdm.raw.geometry import average_blocks, coverage, resample
from anofpdm.raw.register import Head, Registration
from anofpdm.scans.nifti import Volume
from anofpdm.scans.plausible import check_head, check_header, warn_empty_planes

PLAUSIBLE_BRAIN_ML = (500.0, 2400.0)
MOST_CUT = 0.6
BLOCK_MM = 4.0
LEAST_CONTRAST = 0.15
LEAST_AGREEMENT = 0.85  # DICE of two series' brain masks after registration, where both see the brain
# Nats. Measured on real scans: 0.28 to 0.44 for series of one patient, 0.07 to 0.12 for those of two.
LEAST_INFORMATION, GOOD_INFORMATION = 0.16, 0.24
LEAST_TEMPLATE_OVERLAP = 0.85  # DICE of the brains after registration to the template
LEAST_COVERAGE, GOOD_COVERAGE = 0.7, 0.95  # of the reference's brain by another series


def check_series(volume: Volume, *, trust_header: bool = False) -> None:
    """Of the file, before anything is computed."""
    if not trust_header:
        check_head([volume.voxels], volume.grid, volume.path)
    check_header(volume.grid, volume.path)
    warn_empty_planes([volume.voxels], volume.grid, volume.path)


def check_brain(head: Head, path: object) -> None:
    low, high = PLAUSIBLE_BRAIN_ML
    if not low <= head.volume_ml <= high:
        raise ScanError(
            f"{path}: a brain of {head.volume_ml:.0f} ml was found, plausible are {low:.0f} to {high:.0f} ml; "
            "is it a whole head? Give --skull-strip or --brain-mask if it is"
        )
    if (cut := cut_share(head.brain)) > MOST_CUT:
        raise ScanError(
            f"{path}: the brain is cut off by the edge of the scan ({cut:.0%} of its largest cross-section is on the "
            "edge); give a series that covers the brain"
        )
    if (contrast := tissue_contrast(head)) < LEAST_CONTRAST:
        raise ScanError(
            f"{path}: what was found is too uniform for a brain (contrast {contrast:.2f}, at least "
            f"{LEAST_CONTRAST:.2f}); is it a mask, or a phantom?"
        )


def cut_share(brain: np.ndarray) -> float:
    """Area of the brain on an outermost plane of the scan, relative to its largest plane; the most of all six."""
    areas = [np.moveaxis(brain, axis, 0).sum(axis=(1, 2)) for axis in range(3)]
    return float(max(max(area[0], area[-1]) / max(1, area.max()) for area in areas))


def tissue_contrast(head: Head) -> float:
    """Range of the brain's values relative to their median, without noise: on means of blocks inside the brain."""
    means = average_blocks(head.voxels, head.grid, BLOCK_MM)[0]
    inside = average_blocks(head.brain, head.grid, BLOCK_MM)[0] > 0.99
    low, middle, high = np.percentile(means[inside], [5, 50, 95]) if inside.any() else (0.0, 1.0, 1.0)
    return float((high - low) / max(abs(middle), 1e-6))


def check_template(registration: Registration, overlap: float, path: object) -> None:
    if overlap < LEAST_TEMPLATE_OVERLAP or registration.best_information < LEAST_INFORMATION:
        raise ScanError(
            f"{path}: does not fit the template (brains overlap by {overlap:.2f}, mutual information "
            f"{registration.best_information:.2f} after registration); is it a whole head?"
        )


def check_registration(
    registration: Registration, reference: Head, series: Head, paths: tuple[Path, Path]
) -> dict[str, float]:
    """How well the series fits the reference: DICE of the brains, and the fraction of the reference's brain that is in
    the field of view of the series. ScanError where it cannot belong to the reference, a warning where it may not."""
    dice, covered = _measure_agreement(reference, series, registration.matrix)
    other, path = paths
    information = f"mutual information {registration.best_information:.2f} after registration"
    if covered < LEAST_COVERAGE:
        problem = f"shows only {covered:.0%} of the brain in {other}"
    elif registration.best_information < LEAST_INFORMATION:
        problem = f"does not fit {other} ({information})"
    elif dice < LEAST_AGREEMENT:
        problem = f"its brain does not fit that of {other} after registration (DICE {dice:.2f})"
    else:
        if covered < GOOD_COVERAGE:
            warn_scan(f"{path}: shows {covered:.0%} of the brain in {other}; the mask is unreliable elsewhere")
        if registration.best_information < GOOD_INFORMATION:
            warn_scan(f"{path}: hardly fits {other} ({information}); check that it is of the same patient")
        return {"dice": dice, "covered": covered}
    raise ScanError(f"{path}: {problem}; is it of the same patient, and of the whole head?")


def _measure_agreement(reference: Head, series: Head, matrix: np.ndarray) -> tuple[float, float]:
    """Only where both see the brain: where the field of view of one ends, the other may show more."""
    ours = reference.brain & coverage(series.grid, reference.grid, matrix)
    theirs = resample(series.brain, series.grid, reference.grid, matrix) >= 0.5
    i, j, k = (np.any(reference.brain, axis=across) for across in ((1, 2), (0, 2), (0, 1)))
    theirs &= i[:, None, None] & j[:, None] & k
    overlap = 2.0 * (ours & theirs).sum() / max(1, ours.sum() + theirs.sum())
    return float(overlap), float(ours.sum() / reference.brain.sum())
