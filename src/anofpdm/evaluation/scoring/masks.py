"""Masks from NIfTI files, and two of them brought onto one grid."""

import functools
from pathlib import Path
from typing import Literal

import nibabel as nib
import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scans import Grid, read_volume
from anofpdm.scans.grid import corner_gap_mm, describe_grid

MAX_GAP_MM = 0.01  # between corners of one grid in two files; headers are rounded
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
    """Predicted and true mask, bool [i, j, k], in the axis order of the true one, and its grid."""
    true_mask, grid = read_mask(truth, labels[1])
    mask, own_grid = read_mask(predicted, labels[0])
    return align(mask, own_grid, grid, (predicted, truth)), true_mask, grid


def align(voxels: np.ndarray, grid: Grid, target: Grid, paths: tuple[Path, Path]) -> np.ndarray:
    """Voxels with axes reordered and flipped as in the target; a grid that differs otherwise is refused."""
    turn = nib.io_orientation(np.linalg.inv(target.affine) @ grid.affine)
    turned: np.ndarray = nib.apply_orientation(voxels, turn)
    affine = grid.affine @ nib.orientations.inv_ornt_aff(turn, grid.shape)
    gap = corner_gap_mm(affine, target.affine, target.shape) if turned.shape == target.shape else None
    if gap is not None and gap <= MAX_GAP_MM:
        return turned
    apart = "" if gap is None else f", corners {gap:.3g} mm apart"
    raise EvaluationError(
        f"{paths[0]}: {describe_grid(grid)}, but {paths[1]} has {describe_grid(target)}{apart}; "
        "resample it onto that grid (nearest neighbour), or give the mask in the space of the other"
    )


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
    if labels is None or labels == "all":
        return voxels.view(bool) if labels is None and voxels.dtype.itemsize == 1 else voxels > 0
    return functools.reduce(np.logical_or, (voxels == label for label in labels))


def _integers(voxels: np.ndarray, path: Path) -> np.ndarray:
    """Labels that are stored as floats."""
    rounded = np.rint(voxels)
    broken = np.abs(voxels - rounded) > MAX_ROUNDING
    if broken.any():
        raise EvaluationError(
            f"{path}: has values such as {voxels[broken][0]:.3g}, so it is not a mask but a map; threshold it first"
        )
    return rounded.astype(np.int32)
