"""Thin slices from thick ones.

A thick slice is a mean, and linear interpolation between such slices blurs them once more. Here the thin slices are
corrected until their own means over the thick slices are those of the series (iterative back-projection). Slices are
corrected along the series' own axis, before it is resampled.
"""

import math

import numpy as np

from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.geometry import apply, resample
from anofpdm.scans.raw.register import Head

THICK = 1.5  # times as long as the new voxels
TOLERANCE = 1e-3  # headers are rounded
ROUNDS = 3  # of corrections


def resample_series(series: Head, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    """float32 voxels on grid `onto`; `matrix` maps its millimetres to those of the series."""
    axis = int(np.argmax(series.grid.spacing_mm))
    grid = divide(series.grid, axis, float(onto.spacing_mm.max()))
    if grid.shape == series.grid.shape:
        return resample(series.voxels, grid, onto, matrix)
    thin = restore(series.voxels, axis, grid.shape[axis] // series.grid.shape[axis])
    if not _same(grid, onto, matrix):  # the outer half of the outermost slices is not darker
        thin, grid = np.pad(thin, 1, mode="edge"), _padded(grid)
    return np.clip(resample(thin, grid, onto, matrix), 0, None)


def restore(voxels: np.ndarray, axis: int, parts: int) -> np.ndarray:
    """float32, with `parts` thin slices for each thick one along an axis."""
    weights = restoring_weights(voxels.shape[axis], parts).astype(np.float32)
    moved = np.moveaxis(voxels, axis, -1).astype(np.float32) @ weights.T
    return np.ascontiguousarray(np.moveaxis(moved, -1, axis))


def restoring_weights(count: int, parts: int) -> np.ndarray:
    """[count * parts, count]: of the thick slices in every thin one."""
    centres = (np.arange(count * parts) + 0.5) / parts - 0.5  # of thin slices, in thick ones
    between = np.stack([np.interp(centres, np.arange(count), one) for one in np.eye(count)], axis=1)
    means = np.repeat(np.eye(count), parts, axis=1) / parts  # [count, count * parts]
    thin = between
    for _ in range(ROUNDS):
        thin = thin + between @ (np.eye(count) - means @ thin)
    return thin


def divide_slices(grid: Grid, slice_mm: float) -> Grid:
    """The same field of view with axial slices of at most `slice_mm`, if they are much thicker."""
    return divide(grid, grid.axial_axis, slice_mm)


def divide(grid: Grid, axis: int, slice_mm: float) -> Grid:
    thickness = float(grid.spacing_mm[axis])
    if thickness <= THICK * slice_mm:
        return grid
    parts = math.ceil(thickness / slice_mm - TOLERANCE)
    lowest, scale = np.zeros(3), np.ones(4)
    lowest[axis], scale[axis] = (1 / parts - 1) / 2, 1 / parts
    affine = grid.affine @ np.diag(scale)
    affine[:3, 3] = apply(grid.affine, lowest)
    i, j, k = (n * parts if number == axis else n for number, n in enumerate(grid.shape))
    return Grid.from_affine((i, j, k), affine)


def _same(grid: Grid, onto: Grid, matrix: np.ndarray) -> bool:
    return grid.shape == onto.shape and np.allclose(matrix @ onto.affine, grid.affine, atol=1e-6)


def _padded(grid: Grid) -> Grid:
    """One more voxel on each side."""
    affine = grid.affine.copy()
    affine[:3, 3] = apply(grid.affine, np.full(3, -1.0))
    i, j, k = grid.shape
    return Grid.from_affine((i + 2, j + 2, k + 2), affine)
