"""Time and peak memory of the commands at 1, 2, 4 and 8 times the slices.

    python benchmarks/scaling.py [--patients 4] [--times 1,2,4,8]

Phantom cohorts; half of the patients are in the training split, a quarter each in the others. The model is the bundled
one for tumours, or with `--model-steps` a network of `--preset` that is trained for so many steps on the smallest
cohort. Each command is a process of its own. Memory is that of its largest process, and on a GPU also the
most that tensors took there. The slices of a command are those that it uses: calibrate runs on the training split,
evaluate on the other two. Train is measured per step, from its log.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.demo.run_demo import BUNDLED

SPLIT = ("train", "val", "test", "train")  # of patients; every fourth phantom is healthy
NOTE_GPU_PEAK = """
import atexit, pathlib, sys
from anofpdm.__main__ import main
file = pathlib.Path(sys.argv.pop(1))
def note():
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        file.write_text(str(torch.cuda.max_memory_allocated()))
atexit.register(note)
main()
"""


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Scaling(args, Path(scratch))
        bench.make_scans()
        measured: list[Measured] = []
        for times in bench.times:
            measured += bench.measure(times)
        print_table(measured)
        print_lines(measured)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=4, help="Of the smallest cohort; a multiple of 4.")
    parser.add_argument("--times", default="1,2,4,8", help="Sizes of the cohorts, as multiples of the smallest.")
    parser.add_argument("--slices", type=int, default=8, help="Slices of a scan.")
    parser.add_argument(
        "--size", type=int, default=64, help="Pixels along each side of a slice; 64 for the bundled model."
    )
    parser.add_argument("--preset", default="tiny", help="Network that is trained.")
    parser.add_argument("--model-steps", type=int, help="Train the model of the other commands for so many steps.")
    parser.add_argument("--steps", type=int, default=6, help="Training steps that are timed.")
    parser.add_argument("--batch", type=int, default=8, help="Slices of a training step.")
    parser.add_argument("--student-steps", type=int, default=2)
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


@dataclass(frozen=True)
class Cost:
    """Of one process."""

    seconds: float
    cpu_seconds: float  # of all its cores
    mib: float  # of the largest process
    gpu_mib: float | None


@dataclass(frozen=True)
class Measured:
    command: str
    slices: int
    cost: Cost


class Scaling:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.times = sorted(int(word) for word in args.times.split(","))
        self.device = ("--device", args.device)

    def make_scans(self) -> None:
        count = self.args.patients * self.times[-1]
        size = ("--size", self.args.size, "--slices", self.args.slices)
        self.run("phantom", self.folder / "scans", "--kind", "tumour", "--patients", count, *size)

    def measure(self, times: int) -> list[Measured]:
        costs, slices = self.run_commands(times), self.count_slices(times)
        return [Measured(name, slices[name], cost) for name, cost in costs.items()]

    def run_commands(self, times: int) -> dict[str, Cost]:
        scans, cohort, model = (self.folder / f"{name}{times}" for name in ("scans", "cohort", "model"))
        split = self.choose_scans(scans, times)
        levels = ("--levels", self.args.levels)
        costs = {"prepare": self.run("prepare", "brats21", scans, cohort, "--size", self.args.size, "--split", split)}
        costs["train, a step"] = self.train_step(cohort, self.folder / f"trained{times}")
        self.make_model(cohort, model)
        everything = ("--split", "train", "--most", 10**9)
        costs["calibrate"] = self.run("calibrate", model, cohort, *everything, *levels, *self.device)
        costs["distill"] = self.run("distill", model, cohort, "--steps", self.args.student_steps, *self.device)
        for engine in ("diffusion", "student"):
            out = self.folder / f"{engine}{times}"
            costs[f"segment, {engine}"] = self.run(
                "segment", model, scans, "--engine", engine, "--out", out, *self.device
            )
        what = ("--method", "anofpdm-ours", "--seeds", 1, "--out", self.folder / f"scores{times}")
        costs["evaluate"] = self.run("evaluate", model, cohort, *what, *levels, *self.device)
        return costs

    def choose_scans(self, scans: Path, times: int) -> Path:
        """Link the first patients into a folder; a CSV file with their split."""
        patients = sorted(path for path in (self.folder / "scans").iterdir() if path.is_dir())
        patients = patients[: self.args.patients * times]
        for patient in patients:
            shutil.copytree(patient, scans / patient.name, copy_function=os.link)
        split = self.folder / f"split{times}.csv"
        parts = (f"{patient.name},{SPLIT[number % 4]}\n" for number, patient in enumerate(patients))
        split.write_text("patient,split\n" + "".join(parts))
        return split

    def make_model(self, cohort: Path, model: Path) -> None:
        source = self.folder / "model" if self.args.model_steps else BUNDLED / "phantom-tumour"
        if not source.exists():
            words = ("--preset", self.args.preset, "--steps", self.args.model_steps, "--no-pictures")
            self.run("train", cohort, "--out", source, *words, *self.device)
        shutil.copytree(source, model)

    def train_step(self, cohort: Path, out: Path) -> Cost:
        words = ("--preset", self.args.preset, "--steps", self.args.steps, "--batch", self.args.batch, "--no-pictures")
        whole = self.run("train", cohort, "--out", out, *words, *self.device)
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        rates = [line["steps_per_second"] for line in lines[1:] or lines]  # the first steps compile and allocate
        return Cost(1 / statistics.median(rates), whole.cpu_seconds / self.args.steps, whole.mib, whole.gpu_mib)

    def count_slices(self, times: int) -> dict[str, int]:
        cohort = self.folder / f"cohort{times}"
        part_of = {row["patient"]: row["split"] for row in read_rows(cohort / "split.csv")}
        counts = dict.fromkeys(("train", "val", "test"), 0)
        for row in read_rows(cohort / "scans.csv"):
            counts[part_of[row["patient"]]] += int(row["slices"])
        train, val, test = counts.values()
        every = dict.fromkeys(("prepare", "segment, diffusion", "segment, student"), train + val + test)
        return every | {"train, a step": train, "calibrate": train, "distill": train + val, "evaluate": val + test}

    def run(self, *words: object) -> Cost:
        """Run an anofpdm command; a failure ends the benchmark."""
        peak, log = self.folder / "gpu_peak", self.folder / "output"
        peak.unlink(missing_ok=True)
        start = time.perf_counter()
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", NOTE_GPU_PEAK, peak, *map(str, words)], stdout=output, stderr=output
            )
            _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"anofpdm {words[0]} failed:\n{log.read_text()[-2000:]}")
        print(f"  {words[0]}: {seconds:.1f} s", file=sys.stderr, flush=True)
        gpu = int(peak.read_text()) / 2**20 if peak.exists() else None
        return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, gpu)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """fixed + per_slice * slices, by least squares."""

    fixed: float
    per_slice: float
    deviation: float  # largest, as a fraction of the measured values


def fit_line(slices: Sequence[int], values: Sequence[float]) -> Line:
    if len(slices) < 2:
        return Line(values[0], 0.0, 0.0)
    per_slice, fixed = np.polyfit(slices, values, 1)
    error = np.abs(fixed + per_slice * np.asarray(slices) - np.asarray(values))
    return Line(float(fixed), float(per_slice), float((error / np.asarray(values)).max()))


def print_table(measured: Sequence[Measured]) -> None:
    print("command              slices   seconds     CPU s      MiB   GPU MiB")
    for row in sorted(measured, key=lambda row: row.command):  # sizes stay in order
        gpu = f"{row.cost.gpu_mib:9.0f}" if row.cost.gpu_mib else ""
        times = f"{row.cost.seconds:9.2f} {row.cost.cpu_seconds:9.2f} {row.cost.mib:8.0f}"
        print(f"{row.command:19s} {row.slices:7d} {times} {gpu}".rstrip())


def print_lines(measured: Sequence[Measured]) -> None:
    print("\n                     seconds                        CPU seconds                    MiB")
    print("command                fixed  per 1,000  off the line    fixed  per 1,000  off the line  growth  per 1,000")
    for name in sorted({row.command for row in measured}):
        rows = [row for row in measured if row.command == name]
        slices, costs = [row.slices for row in rows], [row.cost for row in rows]
        lines = [fit_line(slices, [getattr(cost, unit) for cost in costs]) for unit in ("seconds", "cpu_seconds")]
        memory = fit_line(slices, [cost.mib for cost in costs])
        times = "".join(f"{line.fixed:8.2f} {1000 * line.per_slice:10.2f} {line.deviation:13.0%} " for line in lines)
        print(f"{name:19s} {times}{costs[-1].mib / costs[0].mib:6.2f}x {1000 * memory.per_slice:10.0f}")


if __name__ == "__main__":
    main()
