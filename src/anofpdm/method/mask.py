"""From an anomaly map to a mask: a threshold that depends on the slice's divergence, and small components dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage

from anofpdm.errors import CalibrationError, MethodError
from anofpdm.options import Threshold, parse

QUANTILES = (0.90, 0.98)  # of a map: at the largest divergence, at none
MEDIAN = 5  # pixels, width of the filter
SMALLEST, AT_SIDE = 40, 128  # components of so many pixels or fewer are dropped, in an image of this side
EIGHT_NEIGHBOURS = np.ones((3, 3), dtype=bool)


@dataclass(frozen=True)
class MaskSettings:
    threshold: Threshold = Threshold.QUANTILE
    smallest: int = SMALLEST  # 0: keep every component
    peak_share: float = 0.0  # share of the slice's maximum that a pixel must reach as well

    def __post_init__(self) -> None:
        object.__setattr__(self, "threshold", parse(Threshold, self.threshold))
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
    height, width = maps.shape[1:]
    result = np.empty_like(maps)
    for image, filtered in zip(maps, result, strict=True):
        padded = np.pad(image, MEDIAN // 2, mode="symmetric")
        windows = [padded[i : i + height, j : j + width] for i in range(MEDIAN) for j in range(MEDIAN)]
        filtered[:] = median_image(windows)
    return result


def median_image(images: Sequence[np.ndarray]) -> np.ndarray:
    """The median at each pixel of an odd number of images.

    Of any (n + 1) / 2 + 1 of n values, the smallest and the largest are not the median. Both are dropped and another
    value is added, until three are left. Minima and maxima of whole images are several times faster than sorting.
    """
    count = len(images) // 2 + 2
    kept, unused = [image.copy() for image in images[:count]], list(images[count:])
    while len(kept) > 3 or unused:
        smallest, *kept, _ = _extremes_to_ends(kept)
        if unused:
            np.copyto(smallest, unused.pop())  # its memory is reused
            kept.append(smallest)
    return _extremes_to_ends(kept)[len(kept) // 2]


def _extremes_to_ends(images: list[np.ndarray]) -> list[np.ndarray]:
    """The same values at each pixel, the smallest in the first image and the largest in the last; in place."""
    count, spare = len(images), np.empty_like(images[0])
    pairs = [(i, count - 1 - i) for i in range(count // 2)]  # lower in the first half, higher in the second
    pairs += [(0, i) for i in range(1, (count + 1) // 2)] + [(i, count - 1) for i in range(count // 2, count - 1)]
    for lower, higher in pairs:
        np.minimum(images[lower], images[higher], out=spare)
        np.maximum(images[lower], images[higher], out=images[higher])
        images[lower], spare = spare, images[lower]
    return images


def thresholds(
    maps: np.ndarray, quantiles: np.ndarray, healthy_threshold: float | None, settings: MaskSettings
) -> np.ndarray:
    """[N]. Quantiles are of the unfiltered map, background included: the filtered map has thinner tails."""
    by_quantile = np.array(
        [np.quantile(image, quantile) for image, quantile in zip(maps, quantiles, strict=True)], dtype=np.float64
    )
    if settings.threshold == Threshold.QUANTILE:
        return by_quantile
    if healthy_threshold is None:
        raise CalibrationError(f"threshold {settings.threshold} needs a calibration for these maps; use 'quantile'")
    by_healthy = np.full(len(maps), healthy_threshold)
    return by_healthy if settings.threshold == Threshold.HEALTHY else np.sqrt(by_quantile * by_healthy)


def mask(smooth: np.ndarray, cuts: np.ndarray, smallest: int = SMALLEST) -> np.ndarray:
    """Filtered maps [N, H, W] and a threshold for each -> bool [N, H, W], without small components."""
    above: np.ndarray = smooth >= cuts[:, None, None]
    limit = smallest_pixels(smooth.shape[1:], smallest)
    return np.stack([drop_small_components(mask, limit) for mask in above]) if limit else above


def smallest_pixels(shape: Sequence[int], smallest: int = SMALLEST) -> int:
    """`smallest`, which is for a side of 128, scaled to an image of this shape."""
    return round(smallest * shape[0] * shape[1] / AT_SIDE**2)


def smallest_lesion_level(maps: np.ndarray) -> np.ndarray:
    """[N, H, W] -> [N]: the value that as many pixels reach as the smallest lesion has."""
    flat = torch.from_numpy(np.ascontiguousarray(maps)).flatten(1)
    largest = flat.topk(max(1, smallest_pixels(maps.shape[1:])), dim=1).values  # far faster than np.partition
    return np.asarray(largest[:, -1])


def drop_small_components(image: np.ndarray, limit: int) -> np.ndarray:
    """bool [H, W] without components (8 neighbours) of `limit` pixels or fewer."""
    components, _ = ndimage.label(image, EIGHT_NEIGHBOURS)
    sizes = np.bincount(components.ravel())
    keep = sizes > limit
    keep[0] = False
    kept: np.ndarray = keep[components]
    return kept
