"""Thin slices from thick ones.

A thick slice is a mean, and linear interpolation between such slices blurs them once more. Here the thin slices are
corrected until their own means over the thick slices are those of the series (iterative back-projection).
"""

import math

import nibabel as nib
import numpy as np
from scipy import ndimage

from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.geometry import apply, resample
from anofpdm.scans.raw.register import Head

THICK = 1.5  # times as long as the new slices
TOLERANCE = 1e-3  # headers are rounded
ROUNDS = 3  # of corrections
MARGIN = 2  # voxels around the brain that are corrected, too


def resample_series(series: Head, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    """float32 voxels on grid `onto`; `matrix` maps its millimetres to those of the series."""
    thin = resample(series.voxels, series.grid, onto, matrix)
    if series.grid.spacing_mm.max() <= THICK * onto.spacing_mm.max():
        return thin
    thick, grid = crop_to_brain(series)
    for _ in range(ROUNDS):
        difference = thick - resample(thin, onto, grid, np.linalg.inv(matrix))
        thin += resample(difference, grid, onto, matrix)
    return np.clip(thin, 0, None)


def axial_axis(grid: Grid) -> int:
    """The array axis from inferior to superior."""
    return int(np.argmax(nib.io_orientation(grid.affine)[:, 0] == 2))


def divide_slices(grid: Grid, slice_mm: float) -> Grid:
    """The same field of view with axial slices of at most `slice_mm`, if they are much thicker."""
    axis = axial_axis(grid)
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


def crop_to_brain(series: Head) -> tuple[np.ndarray, Grid]:
    """float32 voxels in a box around the brain, and their grid."""
    (box,) = ndimage.find_objects(series.brain.astype(np.uint8))
    first = np.array([max(0, side.start - MARGIN) for side in box])
    last = [min(n, side.stop + MARGIN) for side, n in zip(box, series.grid.shape, strict=True)]
    inside = series.voxels[tuple(slice(a, b) for a, b in zip(first, last, strict=True))].astype(np.float32)
    affine = series.grid.affine.copy()
    affine[:3, 3] = apply(series.grid.affine, first.astype(float))
    return inside, Grid.from_affine(inside.shape, affine)
