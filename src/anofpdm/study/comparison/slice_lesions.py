"""Lesion-wise metrics of slices: distance of borders, detected lesions, and DICE by lesion size."""

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import binary_erosion, label
from scipy.spatial import KDTree

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.pixels import check_masks, dice

SIZES = (50, 200, 500, 1000)  # the largest lesion area of each bin, in pixels at 128x128; the last bin has no end
REFERENCE = 128 * 128
FOUR_NEIGHBOURS = [[[0, 1, 0], [1, 1, 1], [0, 1, 0]]]  # in each slice
EIGHT_NEIGHBOURS = ((1, 1, 1), (1, 1, 1), (1, 1, 1))


def hd95(predicted: np.ndarray, truth: np.ndarray, pixel_mm: float = 1.0) -> np.ndarray:
    """bool [N, H, W] each -> [N] in mm, the 95th percentile of the distances from each border to the other, pooled.

    NaN where either mask is empty: there is no border. Report the number of the other slices beside their mean.
    """
    check_masks(predicted, truth)
    distances = np.full(len(truth), np.nan)
    borders = [masks & ~binary_erosion(masks, FOUR_NEIGHBOURS) for masks in (predicted, truth)]
    for row in np.flatnonzero(predicted.any(axis=(1, 2)) & truth.any(axis=(1, 2))):
        points, others = (np.argwhere(border[row]) for border in borders)  # [points, 2]
        apart = np.concatenate([KDTree(others).query(points)[0], KDTree(points).query(others)[0]])
        distances[row] = np.percentile(apart, 95) * pixel_mm
    return distances


def lesion_counts(predicted: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bool [N, H, W] each -> [N] each: detected and missed lesions, and false components of the prediction.

    They are detected, or not false, if they share a pixel with the other mask. Pixels that touch at a side or a corner
    belong to one lesion.
    """
    check_masks(predicted, truth)
    counts = np.zeros((3, len(truth)), dtype=int)
    for row, (mask, lesions) in enumerate(zip(predicted, truth, strict=True)):
        counts[:, row] = *_touched(lesions, mask), _touched(mask, lesions)[1]
    return counts[0], counts[1], counts[2]


def _touched(mask: np.ndarray, other: np.ndarray) -> tuple[int, int]:
    """How many components of a mask share a pixel with another, and how many do not."""
    if not mask.any():
        return 0, 0
    components, count = label(mask, EIGHT_NEIGHBOURS)
    touched = len(np.unique(components[mask & other]))
    return touched, count - touched


@dataclass(frozen=True)
class SizeBin:
    """Slices by the area of their lesions: over `above` and up to `up_to` pixels at 128x128."""

    above: int
    up_to: float  # the last bin: infinite
    count: int
    dice: float  # mean; NaN where there is no slice

    @property
    def name(self) -> str:
        return f"over {self.above}" if np.isinf(self.up_to) else f"{self.above + 1}-{self.up_to:.0f}"


def dice_by_size(predicted: np.ndarray, truth: np.ndarray) -> list[SizeBin]:
    """bool [N, H, W] each; slices without a lesion are left out."""
    scores, areas = dice(predicted, truth), lesion_area(truth)
    starts, ends = (0, *SIZES), (*SIZES, np.inf)
    members = [(areas > start) & (areas <= end) for start, end in zip(starts, ends, strict=True)]
    return [
        SizeBin(start, end, int(inside.sum()), float(scores[inside].mean()) if inside.any() else float("nan"))
        for start, end, inside in zip(starts, ends, members, strict=True)
    ]


def lesion_area(truth: np.ndarray) -> np.ndarray:
    """bool [N, H, W] -> [N], in pixels as they would be at 128x128."""
    if truth.ndim != 3:
        raise EvaluationError(f"masks must be [slices, height, width], got {truth.shape}")
    return np.count_nonzero(truth, axis=(1, 2)) * (REFERENCE / (truth.shape[1] * truth.shape[2]))
