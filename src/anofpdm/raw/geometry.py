"""Transforms between series, and resampling.

A transform is a matrix [4, 4] from millimetres (RAS+) of the reference to millimetres of another series: for each
position on the reference, where to look in the series.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from anofpdm.scans.grid import Grid, bounding_box
from anofpdm.util.workers import cpu_cores, map_in_threads

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])  # from RAS+ to LPS+, and back
MOST_SAMPLES = 16  # along an axis of a voxel


def rigid_matrix(degrees: tuple[float, ...], centre: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rotates by angles about x, then y, then z around `centre`, which it moves to `target`."""
    x, y, z = np.radians(degrees)
    about_x = np.array([[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]])
    about_y = np.array([[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]])
    about_z = np.array([[np.cos(z), -np.sin(z), 0], [np.sin(z), np.cos(z), 0], [0, 0, 1]])
    matrix = np.eye(4)
    matrix[:3, :3] = about_z @ about_y @ about_x
    matrix[:3, 3] = target - matrix[:3, :3] @ centre
    return matrix


def rotation_degrees(matrix: np.ndarray) -> float:
    """Angle of the rotation of a rigid transform."""
    return float(np.degrees(np.arccos(np.clip((np.trace(matrix[:3, :3]) - 1) / 2, -1, 1))))


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """[n, 3] -> [n, 3]."""
    moved: np.ndarray = points @ matrix[:3, :3].T + matrix[:3, 3]
    return moved


def resample(voxels: np.ndarray, grid: Grid, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    """float32 voxels at the positions of grid `onto`, by linear interpolation, 0 off the grid.

    `matrix` maps positions of `onto` to positions of `grid`. Where voxels of `onto` are longer than those of `grid`,
    several positions within each are averaged, so that a thick slice is the mean of the thin ones that it covers.
    """
    indices = voxel_matrix(grid, onto, matrix)
    factors = [max(1, min(MOST_SAMPLES, round(float(np.linalg.norm(step))))) for step in indices[:3, :3].T]
    offsets = [(np.arange(factor) + 0.5) / factor - 0.5 for factor in factors]  # in voxels of `onto`
    total = np.zeros(onto.shape, np.float32)
    part = np.empty(onto.shape, np.float32)
    source = np.ascontiguousarray(voxels, dtype=np.float32)
    for offset in np.stack(np.meshgrid(*offsets, indexing="ij"), axis=-1).reshape(-1, 3):
        _sample(source, indices[:3, :3], apply(indices, offset), part)
        total += part
    return total / np.float32(np.prod(factors))


def voxel_matrix(grid: Grid, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    """[4, 4], from voxels of `onto` to voxels of `grid`; whole numbers where all of them lie on voxels of `grid`."""
    indices: np.ndarray = np.linalg.inv(grid.affine) @ matrix @ onto.affine
    shift = np.eye(4)
    shift[:3, 3] = np.round(indices[:3, 3])
    return shift if np.allclose(indices, shift, rtol=0, atol=1e-6) else indices


def is_whole_shift(indices: np.ndarray) -> bool:
    """Whether nothing has to be interpolated."""
    return np.array_equal(indices[:3, :3], np.eye(3)) and np.array_equal(indices, np.round(indices))


def _sample(source: np.ndarray, matrix: np.ndarray, offset: np.ndarray, out: np.ndarray) -> None:
    """Linear interpolation at `matrix @ index + offset` for every index of `out`, in a thread per CPU core."""

    def fill(rows: slice) -> None:
        part, start = out[rows], offset + matrix[:, 0] * rows.start
        ndimage.affine_transform(source, matrix, start, part.shape, output=part, order=1, mode="grid-constant")

    step = -(-len(out) // cpu_cores())
    rows = [slice(first, first + step) for first in range(0, len(out), step)]
    list(map_in_threads(fill, rows, cpu_cores()))


def average_blocks(voxels: np.ndarray, grid: Grid, largest_mm: float) -> tuple[np.ndarray, Grid]:
    """float32 means of blocks of voxels, at most `largest_mm` long, and their grid; incomplete blocks are cut."""
    i, j, k = (max(1, int(largest_mm / step + 1e-6)) for step in grid.spacing_mm)
    a, b, c = (n // factor for n, factor in zip(grid.shape, (i, j, k), strict=True))
    blocks = voxels[: a * i, : b * j, : c * k].reshape(a, i, b, j, c, k)
    affine = grid.affine @ np.diag([i, j, k, 1.0])
    affine[:3, 3] = apply(grid.affine, (np.array([i, j, k]) - 1) / 2)
    return blocks.mean(axis=(1, 3, 5), dtype=np.float32), Grid.from_affine((a, b, c), affine)


def coverage(grid: Grid, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    """bool on grid `onto`: positions inside the field of view of `grid`."""
    indices = voxel_matrix(grid, onto, matrix)
    i, j, k = np.ogrid[tuple(slice(n) for n in onto.shape)]
    inside = np.ones(onto.shape, dtype=bool)
    for row, size in zip(indices[:3], grid.shape, strict=True):
        index = row[0] * i + row[1] * j + row[2] * k + row[3]
        inside &= (index >= -0.5) & (index <= size - 0.5)
    return inside


def working_grid(
    brain: np.ndarray, grid: Grid, field_of_view_mm: float, centre_mm: Sequence[float] | None = None
) -> Grid:
    """A grid cropped or padded, within its axial slices, to a square around the brain: by whole voxels, or centred at x
    and y of `centre_mm`."""
    given = None if centre_mm is None else apply(np.linalg.inv(grid.affine), np.array([*centre_mm, 0.0]))
    shape, first = list(grid.shape), np.zeros(3)
    box = bounding_box(brain)
    for axis in {0, 1, 2} - {grid.axial_axis}:
        lowest, highest = box[axis].start, box[axis].stop - 1
        middle = (lowest + highest) / 2 if given is None else given[axis]
        size = round(field_of_view_mm / grid.spacing_mm[axis])
        size = max(size, math.ceil(2 * max(middle - lowest, highest - middle) + 1))
        first[axis] = middle - (size - 1) / 2 if given is not None else math.floor(middle) - size // 2
        shape[axis] = size
    return shifted(grid, first, shape)


def shifted(grid: Grid, first: np.ndarray, shape: Sequence[int]) -> Grid:
    """Voxels of the same size, of which the first is where `grid` has this number."""
    affine = grid.affine.copy()
    affine[:3, 3] = apply(grid.affine, np.asarray(first, dtype=float))
    i, j, k = (int(n) for n in shape)
    return Grid.from_affine((i, j, k), affine)


def encode_transform(matrix: np.ndarray) -> bytes:
    """ITK's text format, as read by ITK, ANTs and 3D Slicer; ITK counts in LPS+."""
    lps = LPS @ matrix @ LPS
    numbers = " ".join(repr(float(number)) for number in [*lps[:3, :3].ravel(), *lps[:3, 3]])
    return (
        "#Insight Transform File V1.0\n#Transform 0\nTransform: AffineTransform_double_3_3\n"
        f"Parameters: {numbers}\nFixedParameters: 0 0 0\n"
    ).encode()
