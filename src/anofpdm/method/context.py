"""Smoothing across the neighbouring slices of a scan: a Gaussian in millimetres."""

from dataclasses import dataclass

import numpy as np

from anofpdm.errors import MethodError

REACH = 3.0  # standard deviations


@dataclass(frozen=True)
class SlicePositions:
    """Of N slices: the scan that each belongs to, and its height in it."""

    scans: np.ndarray  # [N], names or numbers
    heights_mm: np.ndarray  # [N]

    def __post_init__(self) -> None:
        if len(self.scans) != len(self.heights_mm):
            raise MethodError(f"{len(self.scans)} scans for {len(self.heights_mm)} heights; give one of each a slice")

    @classmethod
    def unrelated(cls, count: int) -> "SlicePositions":
        """Slices that are not neighbours of each other."""
        return cls(np.arange(count), np.zeros(count))


def smooth_across_slices(values: np.ndarray, positions: SlicePositions, sigma_mm: float) -> np.ndarray:
    """values [N, ...]: each slice becomes the weighted mean of its scan's slices; sigma 0 changes nothing."""
    if sigma_mm <= 0:
        return values
    result = np.empty_like(values)
    for scan in np.unique(positions.scans):
        rows = np.flatnonzero(positions.scans == scan)
        heights_mm, flat = positions.heights_mm[rows], values[rows].reshape(len(rows), -1)
        apart = np.abs(heights_mm[:, None] - heights_mm[None, :]) / sigma_mm
        weights = np.where(apart <= REACH, np.exp(-(apart**2) / 2), 0.0)  # [n, n]
        weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        result[rows] = (weights @ flat).reshape(values[rows].shape)
    return result
