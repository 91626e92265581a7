"""Masks from NIfTI files, and two of them brought onto one grid."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scans import AxialPlanes, Grid, read_volume
from anofpdm.scoring.alignment import align

MAX_ROUNDING = 1e-3  # of a label that a header scales, e.g. 255 by 1 / 255
MAX_NAMED = 8  # labels in a message

Labels = (
    tuple[int, ...] | Literal["all"] | None
)  # values that are lesion; all: above 0; None: the file has 0 and 1 only


def read_mask(path: Path, labels: Labels) -> tuple[np.ndarray, Grid]:
    """bool [i, j, k] in the file's axis order."""
    volume = read_volume(path, allow_constant=True)
    return _select(volume.voxels, labels, path), volume.grid


def read_pair(predicted: Path, truth: Path, labels: tuple[Labels, Labels]) -> tuple[np.ndarray, np.ndarray, Grid]:
    """Predicted and true mask, bool [i, j, k], on the grid of the true one, and that grid."""
    true_mask, grid = read_mask(truth, labels[1])
    return read_mask_on(grid, predicted, labels[0], truth), true_mask, grid


def read_mask_on(grid: Grid, path: Path, labels: Labels, target: Path | str) -> np.ndarray:
    """bool [i, j, k], brought onto the grid of `target`."""
    mask, own_grid = read_mask(path, labels)
    return align(mask, own_grid, grid, (path, target))


def count_correct_slices(truth: np.ndarray, grid: Grid, detected: Mapping[int, bool]) -> int:
    """Slices that were called unhealthy and have a lesion, or neither; `detected` is by axial position, from the
    inferior end."""
    lesion = np.asarray(AxialPlanes(grid, max(grid.shape)).axial(truth).any(axis=(1, 2)))
    return sum(bool(lesion[position]) == called for position, called in detected.items())


def _select(voxels: np.ndarray, labels: Labels, path: Path) -> np.ndarray:
    if voxels.dtype.kind == "f":
        voxels = _integers(voxels, path)
    if labels is None and not (voxels.min() >= 0 and voxels.max() <= 1):
        values = np.unique(voxels).tolist()
        named = ", ".join(map(str, values[:MAX_NAMED])) + (", ..." if len(values) > MAX_NAMED else "")
        raise EvaluationError(
            f"{path}: has the values {named}, not 0 and 1 only; choose lesion labels, e.g. --label 1,2,3, "
            "or --label all for all above 0"
        )
    return voxels > 0 if labels is None or labels == "all" else np.isin(voxels, labels)


def _integers(voxels: np.ndarray, path: Path) -> np.ndarray:
    """Labels that are stored as floats."""
    rounded = np.rint(voxels)
    broken = np.abs(voxels - rounded) > MAX_ROUNDING
    if broken.any():
        raise EvaluationError(
            f"{path}: has values such as {voxels[broken][0]:.3g}, so it is not a mask but a map; threshold it first"
        )
    return rounded.astype(np.int32)
