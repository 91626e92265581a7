"""A mask brought onto the grid of another one: by exact reordering where possible, else to the nearest voxel."""

import math
import warnings
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from anofpdm.errors import EvaluationError, ScanWarning
from anofpdm.scans import Grid
from anofpdm.scans.grid import corner_gap_mm, describe_grid

MAX_GAP_MM = 0.01  # between corners of one grid in two files; headers are rounded
MIN_OVERLAP = 0.5  # of the smaller field of view; below, the two are probably not in one space
SAMPLES = 24  # along each axis, for the overlap

Paths = tuple[Path | str, Path | str]  # of the file, and of the one with the target grid


def align(voxels: np.ndarray, grid: Grid, target: Grid, paths: Paths) -> np.ndarray:
    """On the target's grid, with a warning if the voxels change. A grid elsewhere, or a header without orientation,
    is refused."""
    if _is_same(grid.shape, grid.affine, target):
        return voxels
    _check_orientation(grid, target, paths)
    turn = nib.io_orientation(np.linalg.inv(target.affine) @ grid.affine)
    turned: np.ndarray = nib.apply_orientation(voxels, turn)
    if _is_same(turned.shape, grid.affine @ nib.orientations.inv_ornt_aff(turn, grid.shape), target):
        codes = ["".join(nib.aff2axcodes(space.affine)) for space in (grid, target)]
        _warn(f"{paths[0]}: axes reordered from {codes[0]} to {codes[1]}, those of {paths[1]}")
        return turned
    overlap = _overlap(grid, target)
    if overlap < MIN_OVERLAP:
        raise EvaluationError(
            f"{paths[0]}: {describe_grid(grid)}, but {paths[1]} has {describe_grid(target)}, and their fields of view "
            f"overlap by {overlap:.0%} of the smaller; give both in one space, or correct the affine in the header"
        )
    return _resample(voxels, grid, target, paths)


def _is_same(shape: tuple[int, ...], affine: np.ndarray, target: Grid) -> bool:
    return shape == target.shape and corner_gap_mm(affine, target.affine, target.shape) <= MAX_GAP_MM


def _check_orientation(grid: Grid, target: Grid, paths: Paths) -> None:
    for space, path, other in ((grid, paths[0], paths[1]), (target, paths[1], paths[0])):
        if not space.oriented:
            raise EvaluationError(
                f"{path}: no orientation in its header (qform and sform codes are 0), and it does not have the grid of "
                f"{other}; set the orientation again from the source"
            )


def _overlap(grid: Grid, target: Grid) -> float:
    """Share of the smaller field of view that is inside the other."""
    small, large = sorted((grid, target), key=lambda space: math.prod(space.shape) * np.prod(space.spacing_mm))
    centres = [(np.arange(SAMPLES) + 0.5) / SAMPLES * length - 0.5 for length in small.shape]
    points = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 3)
    return float(_are_inside(points, small, large).mean())


def _are_inside(voxels: np.ndarray, grid: Grid, target: Grid) -> np.ndarray:
    """Which positions [n, 3], in voxels of the grid, are inside the target's field of view."""
    there = nib.affines.apply_affine(np.linalg.inv(target.affine) @ grid.affine, voxels)
    return np.asarray(((there >= -0.5) & (there <= np.array(target.shape) - 0.5)).all(axis=1))


def _resample(voxels: np.ndarray, grid: Grid, target: Grid, paths: Paths) -> np.ndarray:
    """Nearest neighbour; 0 outside."""
    back = np.linalg.inv(grid.affine) @ target.affine
    values = voxels.view(np.uint8) if voxels.dtype == bool else voxels
    resampled = ndimage.affine_transform(
        values, back[:3, :3], back[:3, 3], output_shape=target.shape, order=0, mode="grid-constant"
    )
    note = f"{paths[0]}: resampled (nearest neighbour) from {describe_grid(grid)} to {describe_grid(target)}, the grid "
    note += f"of {paths[1]}"
    if voxels.dtype == bool:
        inside = _are_inside(np.argwhere(voxels), grid, target)
        if not inside.all():
            note += f"; {np.count_nonzero(~inside)} of its {len(inside)} lesion voxels are outside of that grid and "
            note += "are not counted"
    _warn(note)
    return resampled.view(voxels.dtype)


def _warn(text: str) -> None:
    warnings.warn(text, ScanWarning, stacklevel=3)
