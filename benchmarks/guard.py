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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from scipy import ndimage

from anofpdm.choices import Preset
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.method.mask import MEDIAN, median_filtered
from anofpdm.phantoms.phantom_cohort import write_phantoms
from anofpdm.scoring.pairs import Pair
from anofpdm.scoring.score_pairs import score_pair
from anofpdm.study.bench import scan_speed
from anofpdm.study.bench.forward import BenchConfig, measure


@dataclass(frozen=True)
class Limit:
    measure: Callable[[], float]
    usual: float  # ratio
    margin: float  # a regression is a ratio above usual * margin


CPU = torch.device("cpu")
SHAPE = (240, 240, 155)  # of a scan
PART = (240, 240, 24)  # of a head: fewer seconds


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
            voxels, affine = scan_speed.random_head(seed, PART)
            nib.save(nib.Nifti1Image(voxels, affine), path)
        before = median_seconds(lambda: read_all(paths))
        segmenting = scan_speed.scan_seconds(CPU, PART)
        return segmenting / statistics.mean([before, median_seconds(lambda: read_all(paths))])


def prepare_ratio() -> float:
    with tempfile.TemporaryDirectory() as name:
        scans, cohort = Path(name, "scans"), Path(name, "cohort")
        write_phantoms(scans, "tumour", 4, 0, workers=2)
        paths, plan = sorted(scans.rglob("*.nii.gz")), plan_cohort("brats21", scans)
        return ratio_of(lambda: prepare(plan, cohort, 1, overwrite=True), lambda: read_all(paths), repeats=5)


def score_ratio() -> float:
    """Of synthetic glioma masks: an irregular lesion of about 60 ml with two satellites, and a prediction with other
    borders, one satellite missing and three false components."""
    with tempfile.TemporaryDirectory() as folder:
        pair = synthetic_pair(Path(folder))
        files = [pair.predicted, pair.truth]
        score = partial(ratio_of, lambda: score_pair(pair, (None, None)), lambda: read_all(files), repeats=7)
        return statistics.median(score() for _ in range(3))


def synthetic_pair(folder: Path) -> Pair:
    masks = {
        "predicted.nii.gz": [(100, 130, 80, 23), (150, 60, 60, 5)],
        "truth.nii.gz": [(99, 131, 80, 24), (150, 61, 60, 5), (70, 90, 120, 4)],
    }
    for name, balls in masks.items():
        mask = np.zeros(SHAPE, dtype=np.uint8)
        for x, y, z, radius in balls:
            add_lesion(mask, (x, y, z), radius)
        if name.startswith("predicted"):
            mask[[60, 180, 120], [170, 100, 200], [30, 100, 60]] = 1
        nib.save(nib.Nifti1Image(mask, np.diag([-1.0, -1.0, 1.0, 1.0])), folder / name)
    return Pair("scan", "scan", *(folder / name for name in masks))


def add_lesion(mask: np.ndarray, centre: tuple[int, int, int], radius: float) -> None:
    """A ball with waves on its surface."""
    reach = int(1.4 * radius) + 1
    i, j, k = np.ogrid[-reach : reach + 1, -reach : reach + 1, -reach : reach + 1]
    waves = np.sin((i + centre[0]) / 2.7) + np.sin((j + centre[1]) / 3.1) + np.sin((k + centre[2]) / 2.3)
    inside = np.sqrt(i**2 + j**2 + k**2) < radius * (1 + 0.1 * waves)
    mask[tuple(slice(at - reach, at + reach + 1) for at in centre)] |= inside


def read_all(paths: Sequence[Path]) -> None:
    for path in paths:
        np.asanyarray(nib.Nifti1Image.from_filename(path).dataobj)


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
