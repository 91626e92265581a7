"""Evidence of more slices than fit into a batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anofpdm.errors import MethodError
from anofpdm.method.evidence import Evidence, EvidenceSettings, OnLevel, SignalMap, concatenate, forward_evidence
from anofpdm.method.forward_process import Level
from anofpdm.method.guidance import PredictNoise
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Signal
from anofpdm.util.progress import Progress, silent

BATCH, BATCH_ON_CPU = 50, 8  # slices; a CPU gains nothing from more, and activations would fill gigabytes
TASK = "Noise levels"  # as progress reports it
Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> slices [n, C, H, W]


@dataclass(frozen=True)
class EvidenceRequest:
    """What evidence is gathered, and in which portions."""

    settings: EvidenceSettings
    strengths: Sequence[float]
    device: torch.device
    batch: int = BATCH
    signals: tuple[Signal, ...] = ()  # default: the settings' own; `maps` are those of the first


def batch_for(device: torch.device) -> int:
    return BATCH_ON_CPU if device.type == "cpu" else BATCH


def gather_evidence(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],
    request: EvidenceRequest,
    progress: Progress = silent,
) -> Evidence:
    """The evidence of all slices, on the CPU."""
    batches = evidence_batches(predict_noise, pixels, seeds, request, progress)
    return concatenate([batch.map(Tensor.cpu) for batch in batches])


def evidence_batches(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],  # one a slice
    request: EvidenceRequest,
    progress: Progress = silent,
    on_level: OnLevel | None = None,
) -> Iterator[Evidence]:
    """The evidence of slices 0, 1, ..., batch by batch. A batch that does not fit into memory is repeated in halves;
    `on_level` then starts again at its first level."""
    start, size = 0, request.batch
    while start < len(seeds):
        rows = np.arange(start, min(start + size, len(seeds)))
        watch = _LevelWatch(rows, len(seeds), len(request.settings.levels), progress, on_level)
        evidence = _one_batch(predict_noise, pixels(rows), [seeds[int(row)] for row in rows], request, watch)
        if evidence is not None:
            yield evidence
            start += len(rows)
        elif len(rows) == 1 or (watch.finished and on_level is not None):
            raise MethodError(f"not enough memory for a batch of {len(rows)}; free some, or lower --batch")
        else:
            size = (len(rows) + 1) // 2


def _one_batch(
    predict_noise: PredictNoise, slices: np.ndarray, seeds: Sequence[int], request: EvidenceRequest, watch: OnLevel
) -> Evidence | None:
    """None where memory runs out."""
    settings = request.settings
    try:
        return forward_evidence(
            predict_noise,
            torch.from_numpy(slices).to(request.device, torch.float32),
            levels=settings.levels,
            strengths=request.strengths,
            schedule=NoiseSchedule.linear(),
            seeds=seeds,
            channels=settings.channels,
            encoding=settings.encoding,
            signal=request.signals or settings.signal,
            clamp=settings.clamp,
            on_level=watch,
        )
    except torch.OutOfMemoryError:
        pass  # leaving the except block frees what the attempt held
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


class _LevelWatch:
    """Reports progress at each level of a batch, and calls `on_level`."""

    def __init__(self, rows: np.ndarray, count: int, levels: int, progress: Progress, on_level: OnLevel | None):
        self.rows, self.count, self.levels, self.progress, self.on_level = rows, count, levels, progress, on_level
        self.finished = False

    def __call__(self, level: Level, signal_map: SignalMap) -> None:
        done = level.number + 1
        self.finished = done == self.levels
        self.progress(TASK, int(self.rows[0]) * self.levels + len(self.rows) * done, self.count * self.levels)
        if self.on_level is not None:
            self.on_level(level, signal_map)


def slice_seeds(indices: Sequence[int] | np.ndarray, seed: int = 0) -> list[int]:
    """A slice's seed depends on its position in its scan: the same scan gives the same result under any name."""
    return [(seed * 1_000_003 + int(index)) % 2**63 for index in indices]
