"""Tables of benchmarks/scaling.py: measurements, fitted lines, and what they predict for larger cohorts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

GPUS = (1, 8, 64)
STUDENT_STEPS = 3000  # the default of `anofpdm distill`


@dataclass(frozen=True)
class Measured:
    command: str
    slices: int
    seconds: float
    cpu_seconds: float  # of all cores
    mib: float  # of the largest process
    gpu_mib: float | None = None


@dataclass(frozen=True)
class Line:
    """Seconds = fixed + per_slice * slices, by least squares."""

    fixed: float
    per_slice: float
    deviation: float  # largest, as a fraction of the measured seconds
    rise: float = 0.0  # from the fewest slices to the most, in seconds
    scatter: float = 0.0  # largest deviation, in seconds

    @property
    def resolved(self) -> bool:
        """Whether the growth with the slices is larger than the scatter of the measurements."""
        return self.rise > self.scatter


@dataclass(frozen=True)
class StepCosts:
    train: float  # seconds
    batch: int
    student: float  # seconds
    student_steps: int  # in the measured runs of distill


def fit_line(slices: Sequence[int], seconds: Sequence[float]) -> Line:
    if len(slices) < 2:
        return Line(seconds[0], 0.0, 0.0)
    per_slice, fixed = np.polyfit(slices, seconds, 1)
    error = np.abs(fixed + per_slice * np.asarray(slices) - np.asarray(seconds))
    rise = per_slice * (max(slices) - min(slices))
    return Line(
        float(fixed), float(per_slice), float((error / np.asarray(seconds)).max()), float(rise), float(error.max())
    )


def print_table(measured: Sequence[Measured]) -> None:
    print("command              slices   seconds     CPU s      MiB   GPU MiB")
    for one in sorted(measured, key=lambda one: one.command):  # sizes stay in order
        gpu = f"{one.gpu_mib:9.0f}" if one.gpu_mib else ""
        print(
            f"{one.command:19s} {one.slices:7d} {one.seconds:9.2f} {one.cpu_seconds:9.2f} {one.mib:8.0f} {gpu}".rstrip()
        )


def print_lines(measured: Sequence[Measured]) -> dict[str, Line]:
    lines = {}
    print("\n                     seconds                        CPU seconds                    MiB")
    print("command                fixed  per 1,000  off the line    fixed  per 1,000  off the line  growth  per 1,000")
    for name in sorted({one.command for one in measured}):
        rows = [one for one in measured if one.command == name]
        slices = [one.slices for one in rows]
        line = lines[name] = fit_line(slices, [one.seconds for one in rows])
        cpu = fit_line(slices, [one.cpu_seconds for one in rows])
        memory = fit_line(slices, [one.mib for one in rows])
        times = "".join(f"{one.fixed:8.2f} {1000 * one.per_slice:10.2f} {one.deviation:13.0%} " for one in (line, cpu))
        print(f"{name:19s} {times}{rows[-1].mib / rows[0].mib:6.2f}x {1000 * memory.per_slice:10.0f}")
    return lines


def print_projection(lines: Mapping[str, Line], steps: StepCosts, counts: Sequence[int]) -> None:
    print("\nComputed, not measured: hours, from the lines above")
    print("GPUs share slices or batches equally; start-up, preparing and the student's training are not divided")
    print("                                " + "".join(f"{count:>12,d} slices          " for count in counts))
    print("command, on so many GPUs:       " + "".join(f"{gpus:9d}" for _ in counts for gpus in GPUS))
    for name in ("prepare", "train, one epoch", *_divided(lines), f"student, {STUDENT_STEPS} steps"):
        if name in lines and not lines[name].resolved:
            print(f"{name:31s} start-up hides how its time grows; measure more slices")
            continue
        hours = [project(name, lines, steps, count, gpus) / 3600 for count in counts for gpus in GPUS]
        print(f"{name:31s} " + "".join(f"{value:9.3g}" for value in hours))


def _divided(lines: Mapping[str, Line]) -> list[str]:
    return [name for name in lines if name not in ("prepare", "train, a step")]


def project(name: str, lines: Mapping[str, Line], steps: StepCosts, count: int, gpus: int) -> float:
    """Seconds. Slices, or the batch of a training step, are divided equally among GPUs that do not slow each other
    down; the fixed part is not divided. Preparing uses the CPU cores of one machine. One GPU trains the student."""
    if name == "train, one epoch":
        return count / steps.batch * steps.train / gpus
    if name.startswith("student"):
        return STUDENT_STEPS * steps.student
    line = lines[name]
    fixed = line.fixed - (steps.student * steps.student_steps if name == "distill" else 0)
    return max(fixed, 0.0) + max(line.per_slice, 0.0) * count / (1 if name == "prepare" else gpus)
