"""How fast the method is: our forward process and a literal loop of the authors' shape, side by side in one run.

The literal loop asks the network four times a level (guided, unguided, and again for the step up), in float32 with the
layout and layers of a textbook, and keeps every level's map.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.evidence import forward_evidence, spread_levels
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.unet import UNet, preset
from anofpdm.student.network import StudentConfig, StudentNet, predict_logits

MODALITIES = 4
WARM_UP = 2  # levels that are not timed
SPREAD = 0.05  # of the made-up weights


@dataclass(frozen=True)
class Plan:
    device: torch.device
    preset: str
    side: int
    batch: int
    levels: tuple[int, ...]  # how many: the first is compared with the literal loop, level by level
    literal_levels: int
    precision: str = "auto"


@dataclass(frozen=True)
class Row:
    """One way of doing it, timed."""

    way: str
    levels: int
    strengths: int
    seconds: float  # for the whole batch
    evaluations: int  # of the network, each of one slice
    memory_gib: float | None  # at the most, on a GPU
    times_faster: float | None = None  # than the literal loop: at the same levels
    times_faster_than_600: float | None = None  # than the literal loop at 600 levels
    tflops: float = 0.0
    of_peak: float | None = None


def measure(plan: Plan) -> Iterator[Row]:
    peak = matrix_peak(plan.device) if plan.device.type == "cuda" else None
    flops = slice_flops(plan)
    network = made_up_network(plan)
    x0 = torch.rand(plan.batch, MODALITIES, plan.side, plan.side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    x0 = x0.to(plan.device)

    def finished(row: Row, literal_level: float) -> Row:
        tflops = row.evaluations * flops / row.seconds / 1e12
        ours = row.seconds / row.levels
        return Row(
            **{
                **row.__dict__,
                "times_faster": literal_level / ours,
                "times_faster_than_600": 600 * literal_level / row.seconds,
                "tflops": tflops,
                "of_peak": None if peak is None else tflops / peak,
            }
        )

    predict = NoisePredictor(network, plan.device, plan.precision)
    ours = [
        _timed(predict, x0, plan, count, strengths)
        for count, strengths in [*((count, 1) for count in plan.levels), (plan.levels[-1], 10)]
    ]
    del predict
    network = made_up_network(plan).as_in_a_textbook().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    literal = _timed_literal(network.to(plan.device).eval(), x0, plan)
    literal_level = literal.seconds / literal.levels
    yield finished(literal, literal_level)
    for row in ours:
        yield finished(row, literal_level)
    student = _timed_student(x0, plan)
    yield replace(student, times_faster_than_600=600 * literal_level / student.seconds)


def _timed(predict: NoisePredictor, x0: Tensor, plan: Plan, count: int, strengths: int) -> Row:
    def run(levels: Sequence[int]) -> None:
        forward_evidence(
            predict,
            x0,
            levels=levels,
            strengths=range(strengths),
            schedule=NoiseSchedule.linear(),
            seeds=range(len(x0)),
        )

    run(spread_levels(WARM_UP))
    seconds, memory = stopwatch(plan.device, lambda: run(spread_levels(count)))
    way = f"ours, {predict.precision}"
    return Row(way, count, strengths, seconds, 2 * count * len(x0), memory)


def _timed_student(x0: Tensor, plan: Plan) -> Row:
    """One look at each slice, and one at its mirror image, in two modalities; ten times, so that there is something to
    time."""
    torch.manual_seed(0)
    network = StudentNet(StudentConfig(("flair", "t2"), plan.side)).to(plan.device).eval()
    x = x0[:, :2].contiguous()
    for _ in range(WARM_UP):
        predict_logits(network, x)

    def run() -> None:
        for _ in range(10):
            predict_logits(network, x)

    seconds, memory = stopwatch(plan.device, run)
    return Row("a student", 0, 0, seconds / 10, 2 * len(x0), memory)


def _timed_literal(network: UNet, x0: Tensor, plan: Plan) -> Row:
    literal_loop(network, x0, spread_levels(WARM_UP))
    seconds, memory = stopwatch(plan.device, lambda: literal_loop(network, x0, spread_levels(plan.literal_levels)))
    return Row("literal loop, fp32", plan.literal_levels, 1, seconds, 4 * plan.literal_levels * len(x0), memory)


@torch.no_grad()
def literal_loop(network: UNet, x0: Tensor, levels: Sequence[int], strength: float = 0.0) -> tuple[Tensor, Tensor]:
    """Maps [N, H, W] and divergences [N, K], as the authors' code goes about it."""
    schedule = NoiseSchedule.linear()

    def ask(x: Tensor, t: int, label: int) -> Tensor:
        n = len(x)
        said: Tensor = network(x, torch.full((n,), t, device=x.device), torch.full((n,), label, device=x.device))
        return said

    x = schedule.add_noise(x0, levels[0], torch.randn(x0.shape, generator=torch.Generator().manual_seed(0)).to(x0))
    errors, divergences = [], []
    for number, t in enumerate(levels):
        noise = (1 + strength) * ask(x, t, HEALTHY) - strength * ask(x, t, NULL)
        guided = schedule.clean(x, noise, t).clamp(-1, 1)
        unguided = schedule.clean(x, ask(x, t, NULL), t).clamp(-1, 1)
        errors.append((guided - x0).square())
        divergences.append((guided - unguided).square().mean((1, 2, 3)))
        again = schedule.clean(x, ask(x, t, NULL), t).clamp(-1, 1)
        if number + 1 < len(levels):
            x = schedule.ddim_step(x, again, t, levels[number + 1])
    curve = torch.stack(divergences, dim=1)
    ends = curve.argmax(dim=1)
    kept = torch.stack(errors, dim=1).mean(2)  # [N, K, H, W]
    return torch.stack([maps[: end + 1].mean(0) for maps, end in zip(kept, ends.tolist(), strict=True)]), curve


# ---- instruments -----------------------------------------------------------------------------------------------------


def made_up_network(plan: Plan) -> UNet:
    """Random weights, none of them zero: how fast it is does not depend on what it has learned."""
    torch.manual_seed(0)
    network = UNet(preset(plan.preset, MODALITIES))
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=SPREAD)
    return network


def stopwatch(device: torch.device, run: Callable[[], object]) -> tuple[float, float | None]:
    """Seconds, and on a GPU the most memory held, in GiB."""
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


def slice_flops(plan: Plan) -> float:
    """Of one evaluation of the network on one slice."""
    with torch.device("meta"):
        network = UNet(preset(plan.preset, MODALITIES))
        x, t = torch.empty(1, MODALITIES, plan.side, plan.side), torch.zeros(1, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(x, t, t)
    return float(counter.get_total_flops())


def matrix_peak(device: torch.device, side: int = 8192) -> float:
    """TFLOP/s of a large bf16 product of random numbers."""
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b

    def run() -> None:
        for _ in range(10):
            a @ b

    seconds, _ = stopwatch(device, run)
    return 10 * 2 * side**3 / seconds / 1e12
