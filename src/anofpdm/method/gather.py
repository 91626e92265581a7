"""The method's entry point: the evidence of any number of slices, batch by batch.

A slice passes through rising noise levels (forward_process.py). At each, the estimate guided towards healthy
(guidance.py) is compared with the slice and with the unguided estimate (running_evidence.py).
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from anofpdm.choices import Encoding, Signal, parse
from anofpdm.errors import MethodError
from anofpdm.method.evidence import BATCH, Evidence, EvidenceRequest, EvidenceSettings, concatenate
from anofpdm.method.forward_process import Level, forward_process, slice_noise
from anofpdm.method.guidance import PredictNoise
from anofpdm.method.running_evidence import RunningEvidence
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.util.distributed import World
from anofpdm.util.memory import in_batches_that_fit
from anofpdm.util.progress import Progress, silent

BATCH_ON_CPU = 8  # slices; a CPU gains nothing from more, and activations would fill gigabytes
TASK = "Noise levels"  # as progress reports it
Pixels = Callable[[np.ndarray], np.ndarray | Tensor]  # rows -> slices [n, C, H, W]
SignalMap = Callable[[], Tensor]  # computes the signal's map [N, W, H, W] at the current level
OnLevel = Callable[[Level, SignalMap], None]


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
    levels, count = len(request.settings.levels), len(seeds)

    @torch.no_grad()
    def gather(rows: np.ndarray) -> Evidence:
        x0 = _checked_slices(pixels(rows), request)
        running, draw = RunningEvidence(x0, request), slice_noise(x0, [seeds[int(row)] for row in rows])
        for level in forward_process(predict_noise, x0, request.settings, request.schedule, draw):
            running.add(level)
            done = level.number + 1
            if done == levels:  # before the last call of `on_level`, as memory may run out here
                evidence = request.keep(running.evidence()).map(Tensor.cpu)
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
        own = list(batches)
    shares = world.all_gather((mine, own))
    order = torch.from_numpy(np.argsort(np.concatenate([rows for rows, _ in shares])))
    evidence = concatenate(part for _, parts in shares for part in parts)
    return evidence if world.count == 1 else evidence[order]


def regroup(batches: Iterable[Evidence], sizes: Sequence[int]) -> Iterator[Evidence]:
    """The same slices in groups of these sizes, each at least 1: those of a scan each, for example."""
    batches, waiting = iter(batches), list[Evidence]()
    for size in sizes:
        while sum(map(len, waiting)) < size:
            waiting.append(next(batches))
        whole = concatenate(waiting)
        yield whole[:size]
        waiting = [whole[size:]]


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
    signal: Signal | str = Signal.ERROR,
    clamp: bool = True,
    on_level: OnLevel | None = None,
) -> Evidence:
    """The evidence of one batch of slices, without files or models: for experiments."""
    if x0.ndim != 4 or not len(x0):
        raise MethodError(f"slices must be [N, C, H, W], at least one; got {tuple(x0.shape)}")
    if len(seeds) != len(x0):
        raise MethodError(f"{len(seeds)} seeds for {len(x0)} slices; give one for each slice")
    scored = tuple(range(x0.shape[1])) if channels is None else tuple(map(operator.index, channels))
    numbers = tuple(map(operator.index, levels))
    settings = EvidenceSettings(numbers, scored, parse(Encoding, encoding), parse(Signal, signal), clamp)
    request = EvidenceRequest(settings, strengths, x0.device, len(x0), schedule=schedule)
    return concatenate(evidence_batches(predict_noise, lambda rows: x0[rows], seeds, request, on_level=on_level))
