"""The second pass: measurements at every noise level. Only two numbers a slice are kept for each level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from anofpdm.method.evidence import EvidenceRequest
from anofpdm.method.forward_process import Level
from anofpdm.method.gather import SignalMap, evidence_batches, slice_seeds
from anofpdm.method.mask import MaskSettings, mask, median_filtered, thresholds
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.study.ablations.evidence_passes import Study

FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)  # of the end step
KINDS = ("SAM", "gradient")
HIGHEST_LEVEL = 999
MASK = MaskSettings()


def extend_levels(levels: Sequence[int], end_step: int) -> tuple[int, ...]:
    """These levels, continued at the same distance up to the largest factor of the end step."""
    stride = levels[-1] - levels[-2] if len(levels) > 1 else 1
    top = min(HIGHEST_LEVEL, int(max(FACTORS) * end_step))
    return (*levels, *range(levels[-1] + stride, top + 1, stride))


@dataclass(frozen=True)
class LevelMeasurements:
    """Of U slices with a lesion."""

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


def second_pass(study: Study) -> LevelMeasurements:
    """Levels continue beyond the calibrated range, up to the largest multiple of an end step."""
    options, model, world = study.options, study.model, study.world
    mine = world.share(len(study.unhealthy), options.batch)
    recorder, rows = _Recorder(study, mine), study.rows[study.unhealthy[mine]]
    with world.raise_in_all():
        for _ in evidence_batches(
            model.predict,
            lambda some: study.cohort.pixels(rows[some]),
            slice_seeds(study.cohort.indices[rows], options.seed),
            EvidenceRequest(recorder.settings, [study.calibration.strength], model.device, options.batch),
            study.progress,
            recorder,
        ):
            pass
    return _merge(world.all_gather((mine, recorder.parts, recorder.tiles)), recorder.end_step)


Share = tuple[np.ndarray, list[tuple[np.ndarray, ...]], np.ndarray]  # of a process: slices, measurements, tiles


def _merge(shares: Sequence[Share], end_step: np.ndarray) -> LevelMeasurements:
    order = np.argsort(np.concatenate([slices for slices, _, _ in shares]))
    parts = [part for _, parts, _ in shares for part in parts]
    inside, outside, scores = (np.concatenate(measured)[order] for measured in zip(*parts, strict=True))
    beyond = end_step[:, None] * np.array(FACTORS) > HIGHEST_LEVEL
    tiles = np.sum([tiles for _, _, tiles in shares], axis=0)  # each is of one process, 0 in the others
    return LevelMeasurements(inside, outside, scores, beyond.mean(axis=0), tiles)


class _Recorder:
    """Callback of every level of every batch of some of the slices with a lesion."""

    def __init__(self, study: Study, slices: np.ndarray):
        unhealthy, settings = study.unhealthy, study.calibration.settings
        self.study, self.slices, self.device, self.start = study, slices, study.model.device, 0
        self.lesions, self.end_step = study.lesions[unhealthy], study.decisions.measured.end_step[unhealthy]
        self.quantile, self.calibrated = study.decisions.measured.quantile[unhealthy], len(settings.levels)
        self.settings = replace(settings, levels=extend_levels(settings.levels, int(self.end_step.max())))
        self.parts: list[tuple[np.ndarray, ...]] = []  # inside, outside and DICE of each batch
        shape = (len(study.gallery), len(KINDS), len(study.gallery_levels) + 1, *self.lesions.shape[1:])
        self.tiles = np.zeros(shape, dtype=np.float32)

    def __call__(self, level: Level, signal_map: SignalMap) -> None:
        signal = signal_map()[:, 0]  # [n, H, W]
        if level.number == 0:
            self._begin(signal)
        self.ends.add(level.t, signal)
        means = [(signal * region).sum((1, 2)) / region.sum((1, 2)) for region in self.regions]  # NaN: no region
        self.magnitudes.append(torch.stack(means))
        self._record_tiles(level, signal)
        if level.number + 1 == len(self.settings.levels):
            self._finish()

    def _begin(self, signal: Tensor) -> None:
        self.now = self.slices[self.start : self.start + len(signal)]
        lesions = self.lesions[self.now]
        around = self.study.foreground[self.now] & ~lesions
        self.regions = [torch.from_numpy(region).to(self.device) for region in (lesions, around)]
        self.ends = EndStepMaps(torch.from_numpy(self.end_step[self.now]).to(self.device), FACTORS, signal)
        self.magnitudes: list[Tensor] = []  # [2, n] per level

    def _record_tiles(self, level: Level, signal: Tensor) -> None:
        for place, number in enumerate(self.study.gallery):
            wanted = (*self.study.gallery_levels, int(self.end_step[number]))
            columns = [column for column, t in enumerate(wanted) if t == level.t]
            if columns and number in self.now:
                row, channels = int(np.flatnonzero(self.now == number)[0]), list(self.settings.channels)
                gradient = (level.healthy[row] - level.unguided[row])[channels].square().mean(0)
                pair = torch.stack([signal[row], gradient]).cpu().float().numpy()
                self.tiles[place][:, columns] = pair[:, None]

    def _finish(self) -> None:
        magnitudes = torch.stack(self.magnitudes[: self.calibrated], -1)  # [2, n, K]
        maps = self.ends.maps.cpu().float().numpy().swapaxes(0, 1)  # [F, n, H, W]
        quantile, lesions = self.quantile[self.now], self.lesions[self.now]
        cuts = [thresholds(image_maps, quantile, None, MASK) for image_maps in maps]
        masks = [
            mask(median_filtered(image_maps), cut, MASK.smallest) for image_maps, cut in zip(maps, cuts, strict=True)
        ]
        scores = np.stack([dice(drawn, lesions) for drawn in masks], axis=1)
        self.parts.append((*magnitudes.cpu().float().numpy(), scores))
        self.start += len(self.now)
