"""The method's entry point: the evidence of any number of slices, batch by batch.

A slice passes through rising noise levels (forward_process.py). At each, the estimate guided towards healthy
(guidance.py) is compared with the slice and with the unguided estimate (running_evidence.py).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from anofpdm.errors import MethodError, NotEnoughMemoryError
from anofpdm.method.evidence import Evidence, EvidenceSettings, concatenate
from anofpdm.method.forward_process import Level, forward_process, select_channels, slice_noise
from anofpdm.method.guidance import PredictNoise, guided_estimate, noise_pair
from anofpdm.method.running_evidence import RunningEvidence
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Encoding, Signal, parse
from anofpdm.util.distributed import World
from anofpdm.util.memory import half_of, unless_out_of_memory
from anofpdm.util.progress import Progress, silent

BATCH, BATCH_ON_CPU = 50, 8  # slices; a CPU gains nothing from more, and activations would fill gigabytes
TASK = "Noise levels"  # as progress reports it
Pixels = Callable[[np.ndarray], np.ndarray | Tensor]  # rows -> slices [n, C, H, W]
SignalMap = Callable[[], Tensor]  # computes the first signal's map [N, W, H, W] at the current level
OnLevel = Callable[[Level, SignalMap], None]


@dataclass(frozen=True)
class EvidenceRequest:
    """What evidence is gathered, and in which portions."""

    settings: EvidenceSettings
    strengths: Sequence[float]
    device: torch.device
    batch: int = BATCH
    signals: tuple[Signal, ...] = ()  # default: the settings' own; `maps` are those of the first
    schedule: NoiseSchedule = field(default_factory=NoiseSchedule.linear)
    dtype: torch.dtype = torch.float32
    keep: Callable[[Evidence], Evidence] = lambda batch: batch  # what is kept of a batch

    def __post_init__(self) -> None:
        levels, strengths = self.settings.levels, self.strengths
        if levels[-1] >= len(self.schedule):
            raise MethodError(f"noise levels must lie in 0..{len(self.schedule) - 1}; got {list(levels)}")
        if not len(strengths) or len(set(strengths)) < len(strengths):
            raise MethodError(f"guidance strengths must be distinct, at least one of them; got {list(strengths)}")
        if not all(math.isfinite(w) for w in strengths):
            raise MethodError(f"guidance strengths must be finite; got {list(strengths)}")

    def in_even_batches(self, count: int) -> "EvidenceRequest":
        """Batches of nearly equal size for so many slices: on a GPU another size takes a second to prepare."""
        return replace(self, batch=-(-count // max(1, -(-count // self.batch)))) if count else self


def batch_for(device: torch.device) -> int:
    return BATCH_ON_CPU if device.type == "cpu" else BATCH


def slice_seeds(indices: Sequence[int] | np.ndarray, seed: int = 0) -> list[int]:
    """A slice's seed depends on its position in its scan: the same scan gives the same result under any name."""
    return [(seed * 1_000_003 + int(index)) % 2**63 for index in indices]


def evidence_batches(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],  # one a slice
    request: EvidenceRequest,
    progress: Progress = silent,
    on_level: OnLevel | None = None,
) -> Iterator[Evidence]:
    """The evidence of slices 0, 1, ..., batch by batch, on the CPU. A batch that does not fit into memory is repeated
    in halves; `on_level` then starts again at its first level."""
    settings, schedule = request.settings, request.schedule

    @torch.no_grad()
    def gather(rows: np.ndarray, on_level: OnLevel) -> Evidence:
        x0 = _to_device(torch.as_tensor(pixels(rows)), request.device).to(request.dtype)  # [N, C, H, W] in [-1, 1]
        scored = _scored_channels(settings, x0)
        strengths = _to_device(torch.tensor(request.strengths, dtype=x0.dtype), x0.device)  # [W]
        signals = request.signals or (settings.signal,)
        running = RunningEvidence(select_channels(x0, scored), settings, signals, strengths, schedule)
        for level in forward_process(
            noise_pair(predict_noise),
            x0,
            settings.levels,
            draw=slice_noise(x0, [seeds[int(row)] for row in rows]),
            schedule=schedule,
            encoding=settings.encoding,
            clamp=settings.clamp,
        ):
            part = level.select(scored)
            guided = guided_estimate(part.x, part.healthy, part.unguided, part.t, strengths, schedule)
            running.add(part, guided.clamp(-1, 1) if settings.clamp else guided)
            on_level(level, running.current_map)
        return request.keep(running.evidence(tuple(float(w) for w in request.strengths)))

    for evidence in _on_cpu(_batches_that_fit(gather, len(seeds), request, progress, on_level)):
        if not evidence.divergence.isfinite().all():
            raise MethodError("the network predicts non-finite values; try --precision fp32, or train it again")
        yield evidence


def gather_shared(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],
    request: EvidenceRequest,
    world: World,
    progress: Progress = silent,
) -> Evidence:
    """The evidence of all slices, in every process; batches are shared among the processes."""
    request = request.in_even_batches(len(seeds))
    mine = world.share(len(seeds), request.batch)
    with world.raise_in_all():
        own_seeds = [seeds[row] for row in mine]
        batches = evidence_batches(predict_noise, lambda some: pixels(mine[some]), own_seeds, request, progress)
        own = [concatenate(batches)] if len(mine) else []
    shares = world.all_gather((mine, own))
    rows = np.concatenate([share[0] for share in shares])
    order = torch.from_numpy(np.argsort(rows))
    evidence = concatenate(part for share in shares for part in share[1])
    return evidence if world.count == 1 else evidence.map(lambda tensor: tensor[order])


def regroup(batches: Iterable[Evidence], sizes: Sequence[int]) -> Iterator[Evidence]:
    """The same slices in groups of these sizes, each at least 1: those of a scan each, for example."""
    batches, waiting = iter(batches), list[Evidence]()
    for size in sizes:
        while sum(map(len, waiting)) < size:
            waiting.append(next(batches))
        whole = concatenate(waiting)
        yield whole.map(lambda tensor: tensor[:size])  # noqa: B023
        waiting = [whole.map(lambda tensor: tensor[size:])]  # noqa: B023


def forward_evidence(
    predict_noise: PredictNoise,
    x0: Tensor,  # [N, C, H, W] in [-1, 1]
    *,
    levels: Sequence[int],
    strengths: Sequence[float],
    schedule: NoiseSchedule,
    seeds: Sequence[int],  # one a slice
    channels: Sequence[int] | None = None,  # the scored ones; default: all
    encoding: Encoding | str = Encoding.DDIM,
    signal: Signal | str | Sequence[Signal] = Signal.ERROR,  # of several, `maps` are those of the first
    clamp: bool = True,
    on_level: OnLevel | None = None,
) -> Evidence:
    """The evidence of one batch of slices, without files or models: for experiments."""
    if x0.ndim != 4 or not len(x0):
        raise MethodError(f"slices must be [N, C, H, W], at least one; got {tuple(x0.shape)}")
    if len(seeds) != len(x0):
        raise MethodError(f"{len(seeds)} seeds for {len(x0)} slices; give one for each slice")
    scored = tuple(range(x0.shape[1])) if channels is None else tuple(channels)
    signals = (parse(Signal, signal),) if isinstance(signal, str) else tuple(signal)
    settings = EvidenceSettings(tuple(levels), scored, parse(Encoding, encoding), signals[0], clamp)
    request = EvidenceRequest(settings, strengths, x0.device, len(x0), signals, schedule, x0.dtype)
    pixels: Pixels = lambda rows: x0[rows[0] : rows[-1] + 1]  # noqa: E731
    batches = list(evidence_batches(predict_noise, pixels, seeds, request, on_level=on_level))
    return batches[0] if len(batches) == 1 else concatenate(batches)


def _on_cpu(batches: Iterable[Evidence]) -> Iterator[Evidence]:
    """A GPU starts the next batch before the copy of this one is waited for."""
    copies: deque[tuple[Evidence, torch.cuda.Event]] = deque()
    for batch in batches:
        if not batch.divergence.is_cuda:
            yield batch
            continue
        with torch.cuda.device(batch.divergence.device):
            copied = torch.cuda.Event()
            copies.append((batch.map(lambda tensor: tensor.to("cpu", non_blocking=True)), copied))
            copied.record()
        if len(copies) > 1:
            yield _after(*copies.popleft())
    for copy in copies:
        yield _after(*copy)


def _after(evidence: Evidence, copied: "torch.cuda.Event") -> Evidence:
    copied.synchronize()
    return evidence


def _scored_channels(settings: EvidenceSettings, x0: Tensor) -> Tensor:
    if max(settings.channels) >= x0.shape[1]:
        raise MethodError(f"scored channel {max(settings.channels)} does not exist: slices have {x0.shape[1]} channels")
    return _to_device(torch.tensor(settings.channels), x0.device)


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A GPU copies from pinned memory without waiting for the kernels that were started before."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _batches_that_fit(
    gather: Callable[[np.ndarray, OnLevel], Evidence],
    count: int,
    request: EvidenceRequest,
    progress: Progress,
    on_level: OnLevel | None,
) -> Iterator[Evidence]:
    start, size = 0, request.batch
    while start < count:
        rows = np.arange(start, min(start + size, count))
        watch = _LevelWatch(rows, count, len(request.settings.levels), progress, on_level)
        evidence = unless_out_of_memory(partial(gather, rows, watch))
        if evidence is not None:
            yield evidence
            start += len(rows)
        elif watch.finished and on_level is not None:
            raise NotEnoughMemoryError(f"not enough memory for a batch of {len(rows)}; free some, or lower --batch")
        else:
            size = half_of(len(rows))


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
