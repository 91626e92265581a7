"""Faint lesions are drawn relative to their own peak.

Where a student is unsure of a lesion, its logits are not far above 0 anywhere, and where they cross 0 depends on small
changes of the scan: thicker slices, another position. So the threshold of a lesion is its peak minus a span, if that is
below 0. A lesion here is connected across slices.
"""

import numpy as np
from scipy import ndimage

from anofpdm.method.context import SlicePositions

SPAN = 5.0  # logits between the peak of a faint lesion and its threshold
LOWEST = -3.0  # the threshold of no lesion is below
ALL_NEIGHBOURS = np.ones((3, 3, 3), dtype=bool)


def lower_thresholds(logits: np.ndarray, positions: SlicePositions, span: float | None) -> np.ndarray:
    """float32 [n, H, W]: the threshold at each pixel; 0, but lower in faint lesions. Without a span 0 everywhere."""
    thresholds = np.zeros(logits.shape, np.float32)
    if span is None:
        return thresholds
    for scan in np.unique(positions.scans):
        rows = np.flatnonzero(positions.scans == scan)
        rows = rows[np.argsort(positions.heights_mm[rows])]
        peaks = lesion_peaks(logits[rows])
        thresholds[rows] = np.where(peaks >= 0, np.clip(peaks - span, LOWEST, 0), 0)
    return thresholds


def applied_thresholds(thresholds: np.ndarray, above: np.ndarray, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n] each: the lowest and the highest threshold of the pixels [n, H, W] of each mask; of those above their
    threshold where the mask is empty, and of all where none is above."""
    above = above | ~above.any(axis=(1, 2), keepdims=True)
    pixels = np.where(masks.any(axis=(1, 2), keepdims=True), masks, above)
    lowest = np.where(pixels, thresholds, np.inf).min(axis=(1, 2))
    return lowest, np.where(pixels, thresholds, -np.inf).max(axis=(1, 2))


def lesion_peaks(logits: np.ndarray) -> np.ndarray:
    """[n, H, W], adjacent slices of a scan: the largest logit of the lesion that a pixel belongs to; -inf outside."""
    lesions, count = ndimage.label(logits > LOWEST, ALL_NEIGHBOURS)
    peaks = np.full(count + 1, -np.inf, logits.dtype)
    if count:
        peaks[1:] = ndimage.maximum(logits, lesions, np.arange(1, count + 1))
    return peaks[lesions]
