"""Inputs of the student: each slice stacked with neighbouring slices of its scan."""

from collections.abc import Callable, Sequence

import numpy as np

from anofpdm.cohorts.store import Cohort
from anofpdm.method.context import SlicePositions

MIN_DISTANCE_MM = 2.0  # closer slices are nearly identical

Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> slices [n, C, H, W] of the student's modalities


def channel_indices(modalities: Sequence[str], wanted: Sequence[str]) -> list[int]:
    return [list(modalities).index(name) for name in wanted]


def cohort_pixels(cohort: Cohort, rows: np.ndarray, modalities: Sequence[str]) -> Pixels:
    """Slices of these modalities, indexed within `rows`."""
    channels = channel_indices(cohort.modalities, modalities)
    return lambda indices: cohort.pixels(rows[indices])[:, channels]


def stack_slices(pixels: Pixels, rows: np.ndarray) -> np.ndarray:
    """Rows [n, k] -> [n, k * C, H, W] float32."""
    unique, inverse = np.unique(rows, return_inverse=True)
    slices = pixels(unique)[inverse.reshape(rows.shape)]  # [n, k, C, H, W]
    return slices.reshape(len(rows), -1, *slices.shape[-2:]).astype(np.float32)


def neighbour_rows(positions: SlicePositions, offsets_mm: tuple[float, ...]) -> np.ndarray:
    """[N, 1 + offsets] rows: each slice, and the slice of its scan nearest to each offset; the slice itself where none
    lies within half the offset."""
    neighbours = np.tile(np.arange(len(positions.scans))[:, None], (1, 1 + len(offsets_mm)))
    for scan in np.unique(positions.scans):
        rows = np.flatnonzero(positions.scans == scan)
        heights = positions.heights_mm[rows]
        for column, offset in enumerate(offsets_mm, start=1):
            gaps = np.abs(heights[:, None] + offset - heights[None, :])  # [n, n]
            nearest = gaps.argmin(axis=1)
            near = gaps[np.arange(len(rows)), nearest] <= abs(offset) / 2
            neighbours[rows, column] = np.where(near, rows[nearest], rows)
    return neighbours


def default_neighbours_mm(positions: SlicePositions) -> tuple[float, float]:
    """One slice on each side, at the median distance between slices."""
    gaps = [np.diff(np.sort(positions.heights_mm[positions.scans == scan])) for scan in np.unique(positions.scans)]
    distance = float(np.median(np.concatenate(gaps))) if any(map(len, gaps)) else 0.0
    return (-max(distance, MIN_DISTANCE_MM), max(distance, MIN_DISTANCE_MM))
