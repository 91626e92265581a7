"""The method's entry point: the evidence of any number of slices, batch by batch.

A slice passes through rising noise levels (forward_process.py). At each, the estimate guided towards healthy
(guidance.py) is compared with the slice and with the unguided estimate (running_evidence.py).
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from anofpdm.errors import MethodError
from anofpdm.method.evidence import Evidence, EvidenceSettings, concatenate
from anofpdm.method.forward_process import Level, forward_process, slice_noise
from anofpdm.method.guidance import PredictNoise, guided_estimate, noise_pair
from anofpdm.method.running_evidence import RunningEvidence
from anofpdm.method.signals import components
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Encoding, Signal, parse
from anofpdm.util.distributed import World
from anofpdm.util.memory import in_batches_that_fit
from anofpdm.util.progress import Progress, silent

BATCH, BATCH_ON_CPU = 50, 8  # slices; a CPU gains nothing from more, and activations would fill gigabytes
TASK = "Noise levels"  # as progress reports it
Pixels = Callable[[np.ndarray], np.ndarray | Tensor]  # rows -> slices [n, C, H, W]
SignalMap = Callable[[], Tensor]  # computes the signal's map [N, W, H, W] at the current level
OnLevel = Callable[[Level, SignalMap], None]


@dataclass(frozen=True)
class EvidenceRequest:
    """What evidence is gathered, and in which portions."""

    settings: EvidenceSettings
    strengths: Sequence[float]
    device: torch.device
    batch: int = BATCH
    signals: tuple[Signal, ...] = ()  # besides that of the settings
    schedule: NoiseSchedule = field(default_factory=NoiseSchedule.linear)
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
    settings, schedule, count = request.settings, request.schedule, len(seeds)
    pair = noise_pair(predict_noise)
    parts = [part for signal in (settings.signal, *request.signals) for part in components(signal)]

    @torch.no_grad()
    def gather(rows: np.ndarray) -> Evidence:
        x0 = _checked_slices(pixels(rows), request)
        channels = torch.tensor(settings.channels, device=x0.device)
        strengths = torch.tensor(request.strengths, dtype=x0.dtype, device=x0.device)
        running = RunningEvidence(x0[:, channels], settings, parts, strengths, schedule)
        draw, kind = slice_noise(x0, [seeds[int(row)] for row in rows]), settings.encoding
        for level in forward_process(
            pair, x0, settings.levels, draw=draw, schedule=schedule, encoding=kind, clamp=settings.clamp
        ):
            part = level.select(channels)
            guided = guided_estimate(part.x, part.healthy, part.unguided, part.t, strengths, schedule)
            running.add(part, guided.clamp(-1, 1) if settings.clamp else guided)
            done, levels = level.number + 1, len(settings.levels)
            if done == levels:  # before the last call of `on_level`, as memory may run out here
                evidence = request.keep(running.evidence(tuple(map(float, request.strengths)))).map(Tensor.cpu)
            progress(TASK, int(rows[0]) * levels + len(rows) * done, count * levels)
            if on_level is not None:
                on_level(level, running.current_map)
        return evidence

    for _, evidence in in_batches_that_fit(gather, np.arange(count), request.batch):
        if not evidence.divergence.isfinite().all():
            raise MethodError("the network predicts non-finite values; try --precision fp32, or train it again")
        yield evidence


def _checked_slices(pixels: np.ndarray | Tensor, request: EvidenceRequest) -> Tensor:
    """[N, C, H, W] on the device, in single precision or better."""
    x0, highest = torch.as_tensor(pixels).to(request.device), max(request.settings.channels)
    if highest >= x0.shape[1]:
        raise MethodError(f"scored channel {highest} does not exist: slices have {x0.shape[1]} channels")
    return x0.to(torch.promote_types(x0.dtype, torch.float32))


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
    order = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in shares])))
    evidence = concatenate(part for _, parts in shares for part in parts)
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
    scored = tuple(range(x0.shape[1])) if channels is None else tuple(map(operator.index, channels))
    signals = (parse(Signal, signal),) if isinstance(signal, str) else tuple(signal)
    numbers = tuple(map(operator.index, levels))
    settings = EvidenceSettings(numbers, scored, parse(Encoding, encoding), signals[0], clamp)
    request = EvidenceRequest(settings, strengths, x0.device, len(x0), signals, schedule)
    return concatenate(evidence_batches(predict_noise, lambda rows: x0[rows], seeds, request, on_level=on_level))
