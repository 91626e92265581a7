"""Scores of a segmented scan against its lesion mask, on the scan's own grid."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.scans import AxialPlanes, Grid, mask_slices, read_volume
from anofpdm.scoring.alignment import align
from anofpdm.scoring.metrics.pixels import dice


@dataclass(frozen=True)
class VolumeScore:
    dice: float  # of the whole volume; 1 if there is neither a lesion nor a prediction
    lesion_ml: float
    predicted_ml: float
    slices: int  # examined
    slices_correct: int  # correctly detected as healthy or unhealthy


def score_volume(mask: np.ndarray, grid: Grid, detected: Mapping[int, bool], truth_file: Path) -> VolumeScore:
    """`detected` is by axial index, from the inferior end."""
    volume = read_volume(truth_file, allow_constant=True)
    truth = align(volume.voxels > 0, volume.grid, grid, (truth_file, "the scan"))
    planes = AxialPlanes(grid, max(grid.shape))
    lesion = np.asarray(planes.axial(truth).any(axis=(1, 2)))  # [z], from the inferior end
    millilitres = float(np.prod(grid.spacing_mm)) / 1000
    return VolumeScore(
        dice=float(dice(mask[None], truth[None])[0]),
        lesion_ml=float(truth.sum()) * millilitres,
        predicted_ml=float(mask.sum()) * millilitres,
        slices=len(detected),
        slices_correct=sum(bool(lesion[index]) == called for index, called in detected.items()),
    )


def true_slices(truth_file: Path, grid: Grid, size: int, indices: np.ndarray) -> np.ndarray:
    """bool [n, size, size]: the true lesion in slices of the network."""
    return mask_slices(read_volume(truth_file, allow_constant=True).voxels, AxialPlanes(grid, size), indices)
