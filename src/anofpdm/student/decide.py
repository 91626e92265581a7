"""A student's decision: from the logits of a scan's slices to masks.

It is written in the part of torch that TorchScript compiles, so that `anofpdm segment`, `anofpdm evaluate` and exported
files run the same code. Slices are those of one scan, from the lowest to the highest.

 -  Thresholds: a logit of 0. Where a student is unsure of a lesion, its logits are not far above 0 anywhere, and where
    they cross 0 depends on small changes of the scan: thicker slices, another position. So the threshold of a lesion,
    connected across slices, is its peak minus a span, if that is below 0. At the thin ends of lesions it is unsure too:
    the threshold is also lower where fewer pixels of a slice reach it than the smallest component has.
 -  Components: at the ends of a lesion its cross-section is small, but a small component on its own is mostly noise.
    Small ones are kept only where they continue a lesion of an adjacent slice.
 -  Outlines: pixels of a student are larger than voxels of most scans. A mask interpolated from pixels that are lesion
    or not has steps; logits cross their threshold between pixels.
 -  Estimated DICE of each mask, without lesion masks: the DICE of the regions above the threshold in the two
    predictions, of a slice and of its mirror image, times the DICE of the mask that its own probabilities imply. How it
    correlates with the DICE of manual masks: benchmarks/confidence.py.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.errors import ConfigError
from anofpdm.method.calibration import CONTEXT_MM, NotNegative
from anofpdm.method.context import REACH, SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.method.mask import SMALLEST, kth_largest, smallest_pixels
from anofpdm.student.student_network import scan_rows

SPAN = 5.0  # logits between the peak of a faint lesion and its threshold
LOWEST = -3.0  # the threshold of no lesion is below
CLEAR = 0.5  # score of the detector from which a slice with small components alone is given a mask
SPREAD = 2.0  # logits from the edge of a lesion to where levels are 0 or 1
DETECTION_MM = (CONTEXT_MM, 5.0)  # pixels are smoothed as masks are, so that detection ends where the lesion ends


@dataclass(frozen=True)
class StudentCalibration:
    """Fitted to image-level labels."""

    detector: CurveDetector  # of two numbers per slice, see `detection_values`
    accuracy: float = math.nan  # cross-validated over patients, like the AUC; NaN if all slices are of one patient
    auc: float = math.nan
    n_healthy: int = 0
    n_unhealthy: int = 0
    context_mm: NotNegative = CONTEXT_MM  # sigma of the smoothing of pixel logits across slices, as of maps
    detection_mm: tuple[NotNegative, NotNegative] = DETECTION_MM  # of the detector's pixel and slice logits
    smallest: Annotated[int, msgspec.Meta(ge=0)] = SMALLEST
    n_estimated: int = 0  # slices whose label was estimated from that of their scan; accuracy and AUC do not use it
    faint_span: Annotated[float, msgspec.Meta(gt=0)] | None = None  # a faint lesion is drawn so far below its peak

    def __post_init__(self) -> None:
        if self.detector.weights.shape != (2,):
            raise ValueError("the detector is not one of two numbers per slice")


@dataclass(frozen=True)
class MaskChoices:
    """The user's. The detector is not affected: a slice that it calls healthy has no mask."""

    threshold_probability: float | None = None  # of every pixel; None: 0.5, or lower in faint and in small lesions
    smallest: int | None = None  # components of so many pixels or fewer (of 128 x 128) are dropped

    def __post_init__(self) -> None:
        probability = self.threshold_probability
        if probability is not None and not 0 < probability < 1:
            raise ConfigError(f"--threshold-probability must be above 0 and below 1, got {probability:g}")
        if self.smallest is not None and self.smallest < 0:
            raise ConfigError(f"--smallest must be at least 0, got {self.smallest}")


CALIBRATED = MaskChoices()


class ScanDecision(NamedTuple):
    """One entry per slice."""

    maps: Tensor  # [n, H, W]: probability of lesion
    masks: Tensor  # bool [n, H, W]: empty where nothing is detected
    outlines: Tensor  # [n, H, W]: 0 to 1, at least 0.5 in masks
    drawn: Tensor  # bool [n, H, W]: masks before the detector empties those of healthy slices
    score: Tensor  # [n], float64: unhealthy from 0 on
    threshold: Tensor  # [n]: the lowest probability in the mask
    highest_threshold: Tensor  # [n]
    estimated_dice: Tensor  # [n], float64; NaN where the mask is empty


class StudentDecision(nn.Module):
    """The decision with the numbers of a calibration, for slices of `size` x `size` pixels."""

    threshold_logit: float | None
    faint_span: float | None
    centre: Tensor
    scale: Tensor
    weights: Tensor

    def __init__(self, calibration: StudentCalibration, size: int, choices: MaskChoices = CALIBRATED):
        super().__init__()
        detector, chosen = calibration.detector, choices.threshold_probability
        for name in ("centre", "scale", "weights"):
            self.register_buffer(name, torch.from_numpy(getattr(detector, name)))
        self.offset = detector.offset
        self.context_mm, self.detection_mm = float(calibration.context_mm), calibration.detection_mm
        self.faint_span = calibration.faint_span
        self.threshold_logit = None if chosen is None else math.log(chosen / (1 - chosen))
        shape = (size, size)
        self.lesion_pixels = max(1, smallest_pixels(shape))
        self.fewest = smallest_pixels(shape, calibration.smallest) + 1  # pixels that reach the threshold
        self.largest_dropped = smallest_pixels(
            shape, calibration.smallest if choices.smallest is None else choices.smallest
        )
        self.clear = CLEAR

    def forward(self, passes: Tensor, slice_passes: Tensor, heights_mm: Tensor) -> ScanDecision:
        """Logits [n, 2, H, W] and [n, 2] of each slice and its mirror image, and heights [n]."""
        score = self.score(passes.mean(dim=1), slice_passes.mean(dim=1), heights_mm)
        passes = smooth(passes, heights_mm, self.context_mm)
        logits = passes.mean(dim=1)
        faint, thresholds = self.thresholds(logits)
        margins = logits - faint - thresholds[:, None, None]
        drawn, has_large = drop_unlinked(margins >= 0, self.largest_dropped)
        shown = (score >= 0) & (has_large | (score >= self.clear))
        masks = drawn & shown[:, None, None]
        lowest, highest = applied_thresholds(faint + thresholds[:, None, None], margins >= 0, masks)
        maps = logits.sigmoid()
        above = passes - faint[:, None] >= thresholds[:, None, None, None]
        estimate = soft_dice(above[:, 0], above[:, 1]) * soft_dice(maps, masks)
        return ScanDecision(
            maps=maps,
            masks=masks,
            outlines=outline_levels(margins, masks),
            drawn=drawn,
            score=score,
            threshold=lowest.sigmoid(),
            highest_threshold=highest.sigmoid(),
            estimated_dice=estimate.masked_fill(~masks.flatten(1).any(dim=1), math.nan),
        )

    def score(self, pixel_logits: Tensor, slice_logits: Tensor, heights_mm: Tensor) -> Tensor:
        """[n], of logits [n, H, W] and [n]."""
        values = detection_values(pixel_logits, slice_logits, heights_mm, self.detection_mm, self.lesion_pixels)
        return (values.double() - self.centre) / self.scale @ self.weights + self.offset

    def thresholds(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Lower ones of faint lesions [n, H, W], and what is added to these in each slice [n]."""
        chosen = self.threshold_logit
        if chosen is not None:
            return torch.zeros_like(logits), torch.full_like(logits[:, 0, 0], chosen)
        faint = lower_thresholds(logits, self.faint_span)
        return faint, kth_largest(logits - faint, self.fewest).clamp(max=0.0)


def map_scans(
    function: Callable[..., Iterable[Tensor]], positions: SlicePositions, *arrays: np.ndarray
) -> list[np.ndarray]:
    """Results of a function of tensors [n, ...] of a scan's slices and their heights, for slices of any scans in any
    order."""
    arrays = (*arrays, positions.heights_mm.astype(float))
    order, threads = scan_rows(positions), torch.get_num_threads()
    torch.set_num_threads(1)  # the operations are so short that threads would only wait for each other
    try:
        results = [function(*(torch.from_numpy(array[rows]) for array in arrays)) for rows in order]
    finally:
        torch.set_num_threads(threads)
    back = np.argsort(np.concatenate(order))
    return [torch.cat(parts).numpy()[back] for parts in zip(*results, strict=True)]


def smooth(values: Tensor, heights_mm: Tensor, sigma_mm: float, reach: float = REACH) -> Tensor:
    """[n, ...]: Gaussian across slices, as `smooth_across_slices`."""
    if sigma_mm <= 0:
        return values
    apart = (heights_mm[:, None] - heights_mm[None, :]).abs() / sigma_mm
    weights = torch.exp(-apart * apart / 2).masked_fill(apart > reach, 0.0)
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(values.dtype)
    return (weights @ values.reshape(values.shape[0], -1)).reshape(values.shape)


def detection_values(
    pixel_logits: Tensor, slice_logits: Tensor, heights_mm: Tensor, sigmas_mm: tuple[float, float], lesion_pixels: int
) -> Tensor:
    """[n, 2]: the logit exceeded by as many pixels as the smallest lesion has, and the slice logit."""
    level = kth_largest(smooth(pixel_logits, heights_mm, sigmas_mm[0]), lesion_pixels)
    return torch.stack([level, smooth(slice_logits, heights_mm, sigmas_mm[1])], dim=1)


def label_components(inside: Tensor, across: bool) -> Tensor:
    """Of bool [n, H, W], the number of each pixel's component, from 1; 0 outside. A pixel has 8 neighbours in its slice
    and, with `across`, 9 in each adjacent one.

    Pixels are linked to their neighbours. Of two linked components, the higher root gets the lower one as its root,
    until no link is left between components."""
    padded = F.pad(inside, [1, 1, 1, 1, 1, 1])
    pixels = torch.nonzero(padded.flatten())[:, 0]
    root = torch.arange(pixels.shape[0], device=inside.device)
    numbers = torch.full([padded.numel()], -1, device=inside.device).index_put((pixels,), root)
    row, plane = padded.shape[2], padded.shape[1] * padded.shape[2]
    steps = [1, row - 1, row, row + 1]
    if across:
        for below in [plane - row, plane, plane + row]:
            steps += [below - 1, below, below + 1]
    neighbours = torch.stack([numbers[pixels + step] for step in steps])
    first, second = root.expand_as(neighbours)[neighbours >= 0], neighbours[neighbours >= 0]
    while first.numel() > 0:
        root = root.scatter_reduce(0, torch.maximum(first, second), torch.minimum(first, second), "amin")
        while not torch.equal(root, root[root]):
            root = root[root]
        first, second = root[first], root[second]
        apart = first != second
        first, second = first[apart], second[apart]
    numbers = torch.zeros_like(numbers).index_put((pixels,), root + 1)
    return numbers.reshape(padded.shape)[1:-1, 1:-1, 1:-1]


def lower_thresholds(logits: Tensor, span: float | None, lowest: float = LOWEST) -> Tensor:
    """[n, H, W]: the threshold at each pixel; 0, but lower in faint lesions. Without a span 0 everywhere."""
    if span is None:
        return torch.zeros_like(logits)
    lesions = label_components(logits > lowest, across=True)
    peaks = torch.full([lesions.numel() + 1], lowest, device=logits.device, dtype=logits.dtype)
    peaks = peaks.scatter_reduce(0, lesions.flatten(), logits.flatten(), "amax")[lesions]
    return (peaks - span).clamp(lowest, 0.0).masked_fill(peaks < 0, 0.0)


def drop_unlinked(above: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """bool [n, H, W] without components of `limit` pixels or fewer, unless they overlap a kept component of an adjacent
    slice; and bool [n], whether a slice has a larger one."""
    components = label_components(above, across=False)
    keep = torch.bincount(components.flatten()) > limit
    keep[0] = False  # the background
    has_large = keep[components].flatten(1).any(dim=1)
    slices = list(range(above.shape[0]))
    order = slices + slices[::-1]  # from the lowest to the highest, then back
    for row, following in zip(order[:-1], order[1:]):  # noqa: B905, RUF007 -- TorchScript has neither
        linked = components[following][keep[components[row]]]
        keep = keep.index_fill(0, linked[linked > 0], True)
    return keep[components], has_large


def applied_thresholds(thresholds: Tensor, above: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """[n] each: the lowest and the highest threshold of the pixels [n, H, W] of each mask; of those above their
    threshold where the mask is empty, and of all where none is above."""
    above = above | ~above.flatten(1).any(dim=1)[:, None, None]
    unused = ~torch.where(masks.flatten(1).any(dim=1)[:, None, None], masks, above)
    lowest = thresholds.masked_fill(unused, math.inf).amin(dim=(1, 2))
    return lowest, thresholds.masked_fill(unused, -math.inf).amax(dim=(1, 2))


def outline_levels(margins: Tensor, masks: Tensor, spread: float = SPREAD) -> Tensor:
    """[n, H, W] each: logits minus their thresholds, and masks, parts of where these are at least 0 -> levels from 0 to
    1: 0.5 or more in masks; 0 in other components, and in slices without a mask."""
    levels = (margins / spread).clamp(-1, 1) / 2 + 0.5
    not_drawn = (margins >= 0) & ~masks
    return levels.masked_fill(not_drawn | ~masks.flatten(1).any(dim=1)[:, None, None], 0.0)


def soft_dice(first: Tensor, second: Tensor) -> Tensor:
    """[n, H, W] each, 0 to 1 -> float64 [n]: 2 sum(p m) / (sum(p) + sum(m)); NaN where both are empty."""
    first, second = first.double().flatten(1), second.double().flatten(1)
    return 2 * (first * second).sum(dim=1) / (first.sum(dim=1) + second.sum(dim=1))
