"""Registered series on one grid: resampled once, the brain by a vote, and pictures of both."""

import math
from collections.abc import Sequence

import numpy as np

from anofpdm.raw.geometry import apply, coverage, resample
from anofpdm.raw.register import Head
from anofpdm.raw.series_pictures import Images, choose_planes, cut_planes, draw_series
from anofpdm.raw.thick import divide_slices, resample_series
from anofpdm.scans.grid import Grid

REFERENCE_WEIGHT = 1.5  # in the vote over brain masks: decides between two series


class CombinedSeries:
    """Series on the working grid. `to_reference` maps its millimetres to those of the reference."""

    def __init__(self, name: str, reference: Head, grid: Grid, to_reference: np.ndarray):
        self.grid, self._to_reference = grid, to_reference
        self.volumes: dict[str, np.ndarray] = {}  # float32, on the grid
        self._planes = choose_planes(reference)
        self._images: dict[str, Images] = {}  # with skull, for the pictures
        self._votes = np.zeros(self.grid.shape, np.float32)
        self._weights = np.zeros(self.grid.shape, np.float32)
        self._reference = name
        self.add(name, reference, np.eye(4), REFERENCE_WEIGHT)

    def add(self, name: str, series: Head, matrix: np.ndarray, weight: float = 1.0) -> None:
        self._images[name] = cut_planes(series.voxels, series.grid, self._planes, matrix)
        to_series = matrix @ self._to_reference
        self.volumes[name] = resample_series(series, self.grid, to_series)
        self._votes += weight * resample(series.brain, series.grid, self.grid, to_series)
        inside = True if name == self._reference else coverage(series.grid, self.grid, to_series)
        self._weights += np.float32(weight) * inside

    def vote(self) -> np.ndarray:
        """bool: brain in most of the series that cover a voxel."""
        brain: np.ndarray = self._votes >= 0.5 * self._weights
        return brain

    def draw(self, brain: np.ndarray) -> dict[str, bytes]:
        """PNG of each series, with the outline of the brain and, on the others, the edges of the reference."""
        outline = cut_planes(brain, self.grid, self._planes, np.linalg.inv(self._to_reference)) >= 0.5
        pictures = {}
        for name, images in self._images.items():
            if name == self._reference:
                pictures[name] = draw_series(f"{name}: reference. Blue: brain mask", images, outline)
            else:
                title = f"{name}, registered. Orange: edges of {self._reference}. Blue: brain mask"
                pictures[name] = draw_series(title, images, outline, self._images[self._reference])
        return pictures


def working_grid(
    head: Head, field_of_view_mm: float, slice_mm: float | None = None, centre_mm: Sequence[float] | None = None
) -> Grid:
    """Grid of the reference or the template, cropped or padded, within its axial slices, to a square around the brain:
    by whole voxels, or centred at x and y of `centre_mm`. Slices much thicker than `slice_mm` are divided."""
    axial = head.grid.axial_axis
    given = None if centre_mm is None else apply(np.linalg.inv(head.grid.affine), np.array([*centre_mm, 0.0]))
    shape, first = list(head.grid.shape), np.zeros(3)
    for axis in range(3):
        if axis == axial:
            continue
        others = tuple(other for other in range(3) if other != axis)
        inside = np.flatnonzero(head.brain.any(axis=others))
        middle = (inside[0] + inside[-1]) / 2 if given is None else given[axis]
        size = round(field_of_view_mm / head.grid.spacing_mm[axis])
        size = max(size, math.ceil(2 * max(middle - inside[0], inside[-1] - middle) + 1))
        first[axis] = middle - (size - 1) / 2 if given is not None else math.floor(middle) - size // 2
        shape[axis] = size
    affine = head.grid.affine.copy()
    affine[:3, 3] = apply(head.grid.affine, first)
    grid = Grid.from_affine((shape[0], shape[1], shape[2]), affine)
    return grid if slice_mm is None else divide_slices(grid, slice_mm)
