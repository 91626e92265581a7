"""Speed of our forward process, compared with a literal loop like the authors', in one run.

The literal loop evaluates the network four times per level (twice for the guided estimate, once for the unguided one,
and again for the step up), in float32 with plain torch layers, and keeps every level's map.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from anofpdm.choices import Precision, Preset
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.evidence import spread_levels
from anofpdm.method.gather import forward_evidence
from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.unet import UNet
from anofpdm.student.student_network import StudentConfig, StudentNet, mirror_passes

MODALITIES = 4
WARM_UP = 2  # levels that are not timed
WEIGHT_STD = 0.05  # of layers that are initialised with zeros


@dataclass(frozen=True)
class BenchConfig:
    device: torch.device
    preset: Preset
    side: int
    batch: int
    levels: tuple[int, ...]  # numbers of levels
    literal_levels: int
    precision: Precision = Precision.AUTO


@dataclass(frozen=True)
class Timing:
    """Of one implementation."""

    way: str
    levels: int
    strengths: int
    seconds: float  # for the whole batch
    evaluations: int  # of the network, each of one slice
    memory_gib: float | None  # peak, on a GPU
    times_faster: float | None = None  # than the literal loop at as many levels
    times_faster_than_600: float | None = None  # than the literal loop at 600 levels
    tflops: float = 0.0
    of_peak: float | None = None


def measure(config: BenchConfig) -> Iterator[Timing]:
    peak = matrix_peak(config.device, torch.float16) if config.device.type == "cuda" else None
    flops = slice_flops(preset(config.preset, MODALITIES), config.side)
    generator = torch.Generator().manual_seed(0)
    x0 = 2 * torch.rand(config.batch, MODALITIES, config.side, config.side, generator=generator).to(config.device) - 1

    def compare(row: Timing, literal_level: float) -> Timing:
        tflops = row.evaluations * flops / row.seconds / 1e12
        return replace(
            row,
            times_faster=literal_level / (row.seconds / row.levels),
            times_faster_than_600=600 * literal_level / row.seconds,
            tflops=tflops,
            of_peak=None if peak is None else tflops / peak,
        )

    predict = NoisePredictor(random_network(config), config.device, config.precision)
    settings = [*((count, 1) for count in config.levels), (config.levels[-1], 10)]
    ours = [_timed(predict, x0, count, strengths) for count, strengths in settings]
    del predict
    literal = _timed_literal(x0, config)
    literal_level = literal.seconds / literal.levels
    for row in (literal, *ours):
        yield compare(row, literal_level)
    student = _timed_student(x0, config)
    yield replace(student, times_faster_than_600=600 * literal_level / student.seconds)


def _timed(predict: NoisePredictor, x0: Tensor, count: int, strengths: int) -> Timing:
    many, seeds, schedule = range(strengths), range(len(x0)), NoiseSchedule.linear()

    def run(levels: Sequence[int]) -> None:
        forward_evidence(predict, x0, levels=levels, strengths=many, schedule=schedule, seeds=seeds)

    run(spread_levels(WARM_UP))
    seconds, memory = time_run(x0.device, lambda: run(spread_levels(count)))
    return Timing(f"ours, {predict.precision}", count, strengths, seconds, 2 * count * len(x0), memory)


@torch.no_grad()
def _timed_student(x0: Tensor, config: BenchConfig) -> Timing:
    """Each slice and its mirror image, in two modalities; the mean of ten runs."""
    torch.manual_seed(0)
    network = StudentNet(StudentConfig(("flair", "t2"), config.side)).to(config.device).eval()
    x = x0[:, :2].contiguous()

    def run(times: int) -> None:
        for _ in range(times):
            mirror_passes(network, x)

    run(WARM_UP)
    seconds, memory = time_run(config.device, lambda: run(10))
    return Timing("student", 0, 0, seconds / 10, 2 * len(x0), memory)


def _timed_literal(x0: Tensor, config: BenchConfig) -> Timing:
    network = random_network(config).use_plain_layers().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    network, count = network.to(config.device).eval(), config.literal_levels
    literal_loop(network, x0, spread_levels(WARM_UP))
    seconds, memory = time_run(config.device, lambda: literal_loop(network, x0, spread_levels(count)))
    return Timing("literal loop, fp32", count, 1, seconds, 4 * count * len(x0), memory)


@torch.no_grad()
def literal_loop(network: UNet, x0: Tensor, levels: Sequence[int], strength: float = 0.0) -> tuple[Tensor, Tensor]:
    """Maps [N, H, W] and divergences [N, K], computed like the authors' code."""
    schedule = NoiseSchedule.linear()

    def predict(x: Tensor, t: int, label: int) -> Tensor:
        n = len(x)
        return network(x, torch.full((n,), t, device=x.device), torch.full((n,), label, device=x.device))

    x = schedule.add_noise(x0, levels[0], torch.randn(x0.shape, generator=torch.Generator().manual_seed(0)).to(x0))
    errors, divergences = [], []
    for number, t in enumerate(levels):
        noise = (1 + strength) * predict(x, t, HEALTHY) - strength * predict(x, t, NULL)
        guided = schedule.clean(x, noise, t).clamp(-1, 1)
        unguided = schedule.clean(x, predict(x, t, NULL), t).clamp(-1, 1)
        errors.append((guided - x0).square())
        divergences.append((guided - unguided).square().mean((1, 2, 3)))
        again = schedule.clean(x, predict(x, t, NULL), t).clamp(-1, 1)
        if number + 1 < len(levels):
            x = schedule.ddim_step(x, again, t, levels[number + 1])
    curve = torch.stack(divergences, dim=1)
    ends = curve.argmax(dim=1)
    kept = torch.stack(errors, dim=1).mean(2)  # [N, K, H, W]
    return torch.stack([maps[: end + 1].mean(0) for maps, end in zip(kept, ends.tolist(), strict=True)]), curve


# ---- measuring -------------------------------------------------------------------------------------------------------


def random_network(config: BenchConfig) -> UNet:
    """Random weights, none of them zero."""
    torch.manual_seed(0)
    network = UNet(preset(config.preset, MODALITIES))
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=WEIGHT_STD)
    return network


def time_run(device: torch.device, run: Callable[[], object]) -> tuple[float, float | None]:
    """Seconds, and on a GPU the peak memory in GiB."""
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start, None
    with torch.cuda.device(device):
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1000, torch.cuda.max_memory_allocated(device) / 2**30


def slice_flops(config: UNetConfig, side: int) -> float:
    """FLOP of one evaluation of the network on one slice."""
    with torch.device("meta"):
        network = UNet(config)
        x, t = torch.empty(1, config.in_channels, side, side), torch.zeros(1, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(x, t, t)
    return float(counter.get_total_flops())


def matrix_peak(device: torch.device, dtype: torch.dtype, side: int = 8192) -> float:
    """TFLOP/s of a large matrix product."""
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))

    def run(times: int) -> None:
        for _ in range(times):
            a @ b

    run(3)
    seconds, _ = time_run(device, lambda: run(10))
    return 10 * 2 * side**3 / seconds / 1e12
