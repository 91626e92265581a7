"""Check that nothing became slower: ratios of times within one run, each against its limit.

    python benchmarks/guard.py [--only NAME] [--margin 1]

Exit code 1 if a ratio is above its limit; its name is printed. Both times of a ratio are measured by turns in the same
run, on one core, so that other machines and other work on them change the ratios little. Takes a minute.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from files import ratio, read_all, synthetic_pair, time_preparing, time_scoring
from scipy import ndimage

from anofpdm.choices import Preset
from anofpdm.method.mask import MEDIAN, median_filtered
from anofpdm.study.bench import scan_speed
from anofpdm.study.bench.forward import BenchConfig, measure


@dataclass(frozen=True)
class Limit:
    measure: Callable[[], float]
    usual: float  # ratio
    margin: float  # a regression is a ratio above usual * margin


CPU = torch.device("cpu")
SCAN = (240, 240, 24)  # a part of a head: fewer seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="Ratios whose name contains this.")
    parser.add_argument("--margin", type=float, default=1.0, help="Factor of all limits.")
    args = parser.parse_args()
    names = [name for name in LIMITS if not args.only or args.only in name]
    if not names:
        parser.error(f"--only {args.only}: none of {', '.join(LIMITS)}")
    torch.set_num_threads(1)
    print(f"{'ratio':42s} measured   usual   limit")
    slower = []
    for name in names:
        limit = LIMITS[name]
        measured, allowed = limit.measure(), limit.usual * limit.margin * args.margin
        print(f"{name:42s} {measured:8.2f} {limit.usual:7.2f} {allowed:7.2f}", flush=True)
        slower += [] if measured <= allowed else [name]  # also where it is not a number
    if slower:
        sys.exit(f"slower than the limit: {'; '.join(slower)}")


# ---- the ratios ------------------------------------------------------------------------------------------------------


def forward_ratio() -> float:
    config = BenchConfig(CPU, Preset.TINY, side=64, batch=2, levels=(5,), literal_levels=5)
    ratios = []
    for _ in range(3):
        ours = next(row for row in measure(config) if row.way.startswith("ours"))
        assert ours.times_faster is not None
        ratios.append(1 / ours.times_faster)
    return statistics.median(ratios)


def scan_ratio() -> float:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{seed}.nii.gz") for seed in range(len(scan_speed.MODALITIES))]
        for seed, path in enumerate(paths):
            voxels, affine = scan_speed.random_head(seed, SCAN)
            nib.save(nib.Nifti1Image(voxels, affine), path)
        before = median_seconds(lambda: read_all(paths))
        segmenting = scan_speed.scan_seconds(CPU, SCAN)
        return segmenting / statistics.mean([before, median_seconds(lambda: read_all(paths))])


def prepare_ratio() -> float:
    with tempfile.TemporaryDirectory() as folder:
        reading, preparing = time_preparing(Path(folder), 4, repeats=5, workers=1)
        return statistics.median(p / r for p, r in zip(preparing, reading, strict=True))


def score_ratio() -> float:
    with tempfile.TemporaryDirectory() as folder:
        pair = synthetic_pair(Path(folder))
        return statistics.median(ratio(time_scoring(pair, repeats=7)) for _ in range(3))


def median_filter_ratio() -> float:
    maps = np.random.default_rng(0).random((8, 128, 128), dtype=np.float32)
    return ratio_of(
        lambda: median_filtered(maps),
        lambda: [ndimage.median_filter(anomaly_map, MEDIAN, mode="reflect") for anomaly_map in maps],
    )


def help_ratio() -> float:
    def run(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)

    return ratio_of(run("-m", "anofpdm", "--help"), run("-c", "import typer, typer.rich_utils"))


def ratio_of(action: Callable[[], object], reference: Callable[[], object], repeats: int = 15) -> float:
    """Of the median times; the two run by turns."""
    times: list[tuple[float, float]] = [(seconds(action), seconds(reference)) for _ in range(repeats + 1)][1:]
    first, second = zip(*times, strict=True)
    return statistics.median(first) / statistics.median(second)


def median_seconds(action: Callable[[], object], repeats: int = 5) -> float:
    return statistics.median(seconds(action) for _ in range(repeats))


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


LIMITS = {
    "score / reading with nibabel": Limit(score_ratio, 6.9, 1.5),  # first: slower after the others, in one process
    "forward process / literal loop": Limit(forward_ratio, 0.42, 1.3),
    "student's scan / reading its files": Limit(scan_ratio, 235, 1.35),
    "prepare / reading with nibabel": Limit(prepare_ratio, 3.4, 1.35),
    "median filter / scipy's": Limit(median_filter_ratio, 0.41, 1.4),
    "help page / importing typer and rich": Limit(help_ratio, 1.33, 1.12),
}


if __name__ == "__main__":
    main()
