"""From an anomaly map to a mask: a threshold that depends on the slice's divergence, and small components dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage
from torch import Tensor

from anofpdm.choices import Threshold
from anofpdm.errors import MethodError

QUANTILES = (0.90, 0.98)  # of a map: at the largest divergence, at none
MEDIAN = 5  # pixels, width of the filter
SMALLEST, AT_SIDE = 40, 128  # components of so many pixels or fewer are dropped, in an image of this side
EIGHT_NEIGHBOURS = np.zeros((3, 3, 3), dtype=bool)
EIGHT_NEIGHBOURS[1] = True  # of a pixel, in its own slice


@dataclass(frozen=True)
class MaskSettings:
    threshold: Threshold = Threshold.QUANTILE
    smallest: int = SMALLEST  # 0: keep every component
    peak_share: float = 0.0  # share of the slice's maximum that a pixel must reach as well

    def __post_init__(self) -> None:
        if not 0 <= self.peak_share < 1:
            raise MethodError(f"the share of the peak must lie in [0, 1), got {self.peak_share:g}")
        if self.smallest < 0:
            raise MethodError(f"the smallest component must not be negative, got {self.smallest}")


def mask_quantiles(end_divergence: np.ndarray, divergence_max: float) -> np.ndarray:
    """Q* [N]. A larger divergence suggests a larger lesion, and gets a lower quantile."""
    strength = np.clip(end_divergence / divergence_max, 0, 1)  # M_s
    return QUANTILES[1] - (QUANTILES[1] - QUANTILES[0]) * np.round(strength, 2)


def median_filtered(maps: np.ndarray) -> np.ndarray:
    """[N, H, W], each map on its own, by a 5 x 5 median; beyond its edges a map is mirrored."""
    result, middle = np.empty_like(maps), MEDIAN**2 // 2
    for image, filtered in zip(maps, result, strict=True):
        padded = np.pad(image, MEDIAN // 2, mode="symmetric")
        windows = sliding_window_view(padded, (MEDIAN, MEDIAN)).reshape(-1, MEDIAN**2)
        filtered[:] = np.partition(windows, middle)[:, middle].reshape(image.shape)  # scipy's filter is slower
    return result


def thresholds(
    maps: np.ndarray, quantiles: np.ndarray, healthy_threshold: float | None, settings: MaskSettings
) -> np.ndarray:
    """[N]. Quantiles are of the unfiltered map, background included: the filtered map has thinner tails. By quantile
    alone, no threshold from healthy slices is needed."""
    by_quantile = np.array(
        [np.quantile(image, quantile) for image, quantile in zip(maps, quantiles, strict=True)], dtype=np.float64
    )
    if settings.threshold == Threshold.QUANTILE:
        return by_quantile
    by_healthy = np.full(len(maps), healthy_threshold)
    return by_healthy if settings.threshold == Threshold.HEALTHY else np.sqrt(by_quantile * by_healthy)


def mask(smooth: np.ndarray, cuts: np.ndarray, smallest: int = SMALLEST) -> np.ndarray:
    """Filtered maps [N, H, W] and a threshold for each -> bool [N, H, W], without small components."""
    return drop_small_components(smooth >= cuts[:, None, None], smallest_pixels(smooth.shape[1:], smallest))


def drop_small_components(masks: np.ndarray, limit: int) -> np.ndarray:
    """bool [N, H, W] without components of `limit` pixels or fewer."""
    components, _ = ndimage.label(masks, EIGHT_NEIGHBOURS)
    keep = np.bincount(components.ravel()) > limit
    keep[0] = False  # the background
    return keep[components]


def smallest_pixels(shape: Sequence[int], smallest: int = SMALLEST) -> int:
    """`smallest`, which is for a side of 128, scaled to an image of this shape."""
    return round(smallest * shape[0] * shape[1] / AT_SIDE**2)


def smallest_lesion_level(maps: np.ndarray) -> np.ndarray:
    """[N, H, W] -> [N]: the value that as many pixels reach as the smallest lesion has."""
    return np.asarray(kth_largest(torch.from_numpy(maps), max(1, smallest_pixels(maps.shape[1:]))))


def kth_largest(images: Tensor, k: int) -> Tensor:
    """[N, H, W] -> [N]. Far faster than np.partition; exported students use it, too."""
    flat = images.flatten(1)
    return flat.topk(min(k, flat.shape[1]), dim=1).values[:, -1]
