"""From an anomaly map to a mask: a threshold that knows how strongly the slice answered to guidance, and tidying."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from anofpdm.errors import MethodError

QUANTILES = (0.90, 0.98)  # of a map: for the strongest answer, for none
MEDIAN = 5
SMALLEST, AT_SIDE = 40, 128  # components of so many pixels or fewer are dropped, in an image of this side
THRESHOLDS = ("quantile", "healthy", "both")
EIGHT_NEIGHBOURS = np.ones((3, 3), dtype=bool)


@dataclass(frozen=True)
class MaskSettings:
    threshold: str = "quantile"  # the paper's; or from healthy slices; or the geometric mean of both
    smallest: int = SMALLEST  # 0: keep every component
    peak_share: float = 0.0  # of a slice's highest value that a pixel must reach as well

    def __post_init__(self) -> None:
        if not 0 <= self.peak_share < 1:
            raise MethodError(f"a share of the peak lies between 0 and 1, got {self.peak_share:g}")
        if self.threshold not in THRESHOLDS:
            raise MethodError(f"unknown threshold {self.threshold!r}; choose one of {', '.join(THRESHOLDS)}")
        if self.smallest < 0:
            raise MethodError(f"components cannot be smaller than 0 pixels; got {self.smallest}")


def mask_quantiles(end_divergence: np.ndarray, divergence_max: float) -> np.ndarray:
    """[N] -> [N]: how much of a slice is left below the threshold. A stronger answer, a larger lesion, a lower one."""
    strength = np.clip(end_divergence / divergence_max, 0, 1)
    return QUANTILES[1] - (QUANTILES[1] - QUANTILES[0]) * np.round(strength, 2)


def median_filtered(maps: np.ndarray) -> np.ndarray:
    """[N, H, W], each map alone, by a 5 x 5 median."""
    return np.stack([ndimage.median_filter(image, size=MEDIAN, mode="reflect") for image in maps])


def thresholds(maps: np.ndarray, quantiles: np.ndarray, healthy_threshold: float, settings: MaskSettings) -> np.ndarray:
    """[N]. The quantile is of the map itself, background included: the filtered map has thinner tails."""
    by_quantile = np.array(
        [np.quantile(image, quantile) for image, quantile in zip(maps, quantiles, strict=True)], dtype=np.float64
    )
    if settings.threshold == "quantile":
        return by_quantile
    by_healthy = np.full(len(maps), healthy_threshold)
    return by_healthy if settings.threshold == "healthy" else np.sqrt(by_quantile * by_healthy)


def mask(smooth: np.ndarray, cuts: np.ndarray, smallest: int = SMALLEST) -> np.ndarray:
    """Filtered maps [N, H, W] and a threshold for each -> bool [N, H, W], without small components."""
    above: np.ndarray = smooth >= cuts[:, None, None]
    limit = smallest_pixels(smooth.shape[1:], smallest)
    return np.stack([drop_small_components(one, limit) for one in above]) if limit else above


def smallest_pixels(shape: Sequence[int], smallest: int = SMALLEST) -> int:
    """In an image of this shape."""
    return round(smallest * shape[0] * shape[1] / AT_SIDE**2)


def smallest_lesion_level(maps: np.ndarray) -> np.ndarray:
    """[N, H, W] -> [N]: what as many pixels of a map reach as the smallest lesion has."""
    rank = max(0, smallest_pixels(maps.shape[1:]) - 1)
    return np.asarray(-np.partition(-maps.reshape(len(maps), -1), rank, axis=1)[:, rank])


def drop_small_components(drawn: np.ndarray, limit: int) -> np.ndarray:
    """[H, W] without components (8 neighbours) of `limit` pixels or fewer."""
    components, _ = ndimage.label(drawn, EIGHT_NEIGHBOURS)
    sizes = np.bincount(components.ravel())
    keep = sizes > limit
    keep[0] = False
    kept: np.ndarray = keep[components]
    return kept
