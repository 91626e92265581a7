"""The second pass: measurements at every noise level. Only two numbers a slice are kept for each level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from anofpdm.cohorts.store import Cohort
from anofpdm.evaluation.metrics.pixels import dice
from anofpdm.method.evidence import EvidenceSettings, SignalMap
from anofpdm.method.forward_process import Level
from anofpdm.method.many_slices import EvidenceRequest, evidence_batches, slice_seeds
from anofpdm.method.mask import MaskSettings, mask, median_filtered, thresholds
from anofpdm.network.predictor import TrainedModel
from anofpdm.util.progress import Progress

FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # of the end step
KINDS = ("SAM", "gradient")
HIGHEST_LEVEL = 999


def extend_levels(levels: Sequence[int], end_step: int) -> tuple[int, ...]:
    """These levels, continued at the same distance up to the largest factor of the end step."""
    stride = levels[-1] - levels[-2] if len(levels) > 1 else 1
    top = min(HIGHEST_LEVEL, int(max(FACTORS) * end_step))
    return (*levels, *range(levels[-1] + stride, top + 1, stride))


@dataclass(frozen=True)
class LesionSlices:
    """Input of the second pass: U slices with a lesion."""

    rows: np.ndarray  # [U], in the cohort
    lesions: np.ndarray  # bool [U, H, W]
    foreground: np.ndarray  # bool [U, H, W]
    end_step: np.ndarray  # [U], t_e
    quantile: np.ndarray  # [U], of the dynamic threshold
    gallery: tuple[int, ...]  # indices of the slices in the gallery
    gallery_levels: tuple[int, ...]  # shown at these levels, and at their end steps


@dataclass(frozen=True)
class LevelMeasurements:
    inside: np.ndarray  # [U, K], mean of S_t over the lesion
    outside: np.ndarray  # [U, K], over the foreground around it
    dice: np.ndarray  # [U, F], of the map up to each factor of the end step
    cut_short: np.ndarray  # [F], share of slices for which it lies above the highest level
    tiles: np.ndarray  # [gallery, 2, levels + 1, H, W]: S_t and (e_h - e_0)^2; the last level is the end step


class EndStepMaps:
    """Mean signal of a batch up to several multiples of each slice's end step, always including the first level."""

    def __init__(self, end_step: Tensor, factors: Sequence[float], images: Tensor):
        self.ends = end_step[:, None] * torch.tensor(factors, dtype=torch.float32).to(end_step.device)  # [n, F]
        self.sum, self.count = torch.zeros_like(images), 0
        self.maps = images.new_zeros((*self.ends.shape, *images.shape[1:]))  # [n, F, H, W]

    def add(self, t: int, signal: Tensor) -> None:
        """signal [n, H, W]. A map is the running mean at the last level within its range."""
        self.sum, self.count = self.sum + signal, self.count + 1
        within = (self.ends >= t) | (self.count == 1)
        self.maps = torch.where(within[..., None, None], (self.sum / self.count)[:, None], self.maps)


def second_pass(
    model: TrainedModel,
    cohort: Cohort,
    slices: LesionSlices,
    *,
    settings: EvidenceSettings,
    strength: float,
    seed: int,
    batch: int,
    progress: Progress,
) -> LevelMeasurements:
    """Levels continue beyond the calibrated range, up to the largest multiple of an end step."""
    calibrated = len(settings.levels)
    settings = replace(settings, levels=extend_levels(settings.levels, int(slices.end_step.max())))
    recorder = _Recorder(slices, settings, calibrated, model.device)
    for _ in evidence_batches(
        model.predict,
        lambda some: cohort.pixels(slices.rows[some]),
        slice_seeds(cohort.indices[slices.rows], seed),
        EvidenceRequest(settings, [strength], model.device, batch),
        progress,
        recorder,
    ):
        pass
    return recorder.measurements()


class _Recorder:
    """Callback of every level of every batch."""

    def __init__(self, slices: LesionSlices, settings: EvidenceSettings, calibrated: int, device: torch.device):
        self.slices, self.settings, self.calibrated, self.device = slices, settings, calibrated, device
        self.start = 0
        self.inside: list[np.ndarray] = []  # one entry per batch
        self.outside: list[np.ndarray] = []
        self.dice: list[np.ndarray] = []
        shape = (len(slices.gallery), len(KINDS), len(slices.gallery_levels) + 1, *slices.lesions.shape[1:])
        self.tiles = np.zeros(shape, dtype=np.float32)

    def __call__(self, level: Level, signal_map: SignalMap) -> None:
        signal = signal_map()[:, 0]  # [n, H, W]
        if level.number == 0:
            self._begin(signal)
        self.ends.add(level.t, signal)
        self.magnitudes.append(torch.stack([_mean_in(signal, region) for region in self.regions]))
        self._record_tiles(level, signal)
        if level.number + 1 == len(self.settings.levels):
            self._finish()

    def _begin(self, signal: Tensor) -> None:
        self.now = slice(self.start, self.start + len(signal))
        lesions = self.slices.lesions[self.now]
        around = self.slices.foreground[self.now] & ~lesions
        self.regions = [torch.from_numpy(region).to(self.device) for region in (lesions, around)]
        end_step = torch.from_numpy(self.slices.end_step[self.now]).to(self.device)
        self.ends = EndStepMaps(end_step, FACTORS, signal)
        self.magnitudes: list[Tensor] = []  # [2, n] per level

    def _record_tiles(self, level: Level, signal: Tensor) -> None:
        for place, number in enumerate(self.slices.gallery):
            if number not in range(self.now.start, self.now.stop):
                continue
            wanted = (*self.slices.gallery_levels, int(self.slices.end_step[number]))
            columns = [column for column, t in enumerate(wanted) if t == level.t]
            if columns:
                row, channels = number - self.start, list(self.settings.channels)
                gradient = (level.healthy[row] - level.unguided[row])[channels].square().mean(0)
                both = torch.stack([signal[row], gradient]).cpu().float().numpy()
                self.tiles[place][:, columns] = both[:, None]

    def _finish(self) -> None:
        magnitudes = torch.stack(self.magnitudes[: self.calibrated], -1)  # [2, n, K]
        inside, outside = magnitudes.cpu().float().numpy()
        self.inside.append(inside)
        self.outside.append(outside)
        maps = self.ends.maps.cpu().float().numpy()
        quantile, lesions = self.slices.quantile[self.now], self.slices.lesions[self.now]
        masks = [masks_at(maps[:, column], quantile) for column in range(len(FACTORS))]
        self.dice.append(np.stack([dice(one, lesions) for one in masks], axis=1))
        self.start = self.now.stop

    def measurements(self) -> LevelMeasurements:
        inside, outside, scores = (np.concatenate(parts) for parts in (self.inside, self.outside, self.dice))
        beyond = self.slices.end_step[:, None] * np.array(FACTORS) > HIGHEST_LEVEL
        return LevelMeasurements(inside, outside, scores, beyond.mean(axis=0), self.tiles)


def masks_at(maps: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Masks [n, H, W] of maps thresholded at their own quantiles."""
    settings = MaskSettings()
    return mask(median_filtered(maps), thresholds(maps, quantiles, None, settings), settings.smallest)


def _mean_in(images: Tensor, region: Tensor) -> Tensor:
    """[n, H, W] each -> [n]; NaN where the region is empty."""
    return (images * region).sum((1, 2)) / region.sum((1, 2))
