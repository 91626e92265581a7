"""Thin slices from thick ones.

A thick slice is a mean, and linear interpolation between such slices blurs them once more. Here the thin slices are
corrected until their own means over the thick slices are those of the series (iterative back-projection): first along
the series' own axis, which is fast, then on the new grid, because resampling blurs, too.
"""

import itertools
import math

import numpy as np

from anofpdm.raw.geometry import apply, is_whole_shift, resample, shifted, voxel_matrix
from anofpdm.raw.register import Head
from anofpdm.scans.grid import Grid, bounding_box

THICK = 1.5  # times as long as the new voxels
TOLERANCE = 1e-3  # headers are rounded
ROUNDS = 3  # of corrections along the axis
STEP = 1.5  # size of the one correction on the new grid; as good as two of size 1
MARGIN = 2  # voxels around the brain that are corrected there, too
Box = tuple[slice, slice, slice]


def resample_series(series: Head, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    """float32 voxels on grid `onto`, at least 0; `matrix` maps its millimetres to those of the series."""
    axis, voxels = int(np.argmax(series.grid.spacing_mm)), series.voxels
    grid = divide(series.grid, axis, float(onto.spacing_mm.max()))
    parts = grid.shape[axis] // series.grid.shape[axis]
    thin = voxels if parts == 1 else restore(voxels, axis, parts)
    if parts == 1 or is_whole_shift(voxel_matrix(grid, onto, matrix)):
        thin = resample(thin, grid, onto, matrix)
    else:
        padded = np.pad(thin, 1, mode="edge")  # the outer half of the outermost slices is not darker
        thin = resample(padded, shifted(grid, np.full(3, -1), padded.shape), onto, matrix)
        _correct_brain(thin, onto, series, matrix)
    return np.clip(thin, 0, None, out=thin)


def _correct_brain(thin: np.ndarray, onto: Grid, series: Head, matrix: np.ndarray) -> None:
    """Add, in place, what the means over thick slices lack. Thick slices mostly outside the new grid have no mean."""
    back = np.linalg.inv(matrix)
    first, end = np.array([(side.start, side.stop) for side in bounding_box(series.brain)]).T
    box, grid = _crop(series.grid, first - MARGIN, end + MARGIN)
    corners = np.array(list(itertools.product(*((-0.5, n - 0.5) for n in grid.shape))))
    inside = apply(np.linalg.inv(onto.affine) @ back @ grid.affine, corners)  # the thick slices, in voxels of `onto`
    onto_box, part = _crop(onto, np.floor(inside.min(axis=0)), np.ceil(inside.max(axis=0)) + 1)
    thick, corrected = series.voxels[box].astype(np.float32), thin[onto_box]
    covered = resample(np.ones(part.shape, np.float32), part, grid, back)
    means = resample(corrected, part, grid, back) / np.maximum(covered, 0.5)
    corrected += STEP * resample(np.where(covered > 0.5, thick - means, 0), grid, part, matrix)


def restore(voxels: np.ndarray, axis: int, parts: int) -> np.ndarray:
    """float32, with `parts` thin slices for each thick one along an axis."""
    count = voxels.shape[axis]
    centres = (np.arange(count * parts) + 0.5) / parts - 0.5  # of thin slices, in thick ones
    between = np.stack([np.interp(centres, np.arange(count), unit) for unit in np.eye(count)], axis=1)
    means = np.repeat(np.eye(count), parts, axis=1) / parts  # [count, count * parts]
    weights = between  # [count * parts, count]: of the thick slices in every thin one
    for _ in range(ROUNDS):
        weights = weights + between @ (np.eye(count) - means @ weights)
    moved = np.moveaxis(voxels, axis, -1).astype(np.float32) @ weights.astype(np.float32).T
    return np.ascontiguousarray(np.moveaxis(moved, -1, axis))


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


def _crop(grid: Grid, first: np.ndarray, last: np.ndarray) -> tuple[Box, Grid]:
    """Cut off at the edges of the grid."""
    low = np.clip(first.astype(int), 0, np.array(grid.shape) - 1)
    high = np.clip(last.astype(int), low + 1, grid.shape)
    i, j, k = (slice(int(a), int(b)) for a, b in zip(low, high, strict=True))
    return (i, j, k), shifted(grid, low, high - low)
