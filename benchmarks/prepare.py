"""Time of preparing a cohort, relative to reading the same files with nibabel in one process.

    python benchmarks/prepare.py SCANS [--copies 20] [--repeats 5]

SCANS is a folder in the BraTS21 layout. Its subjects are copied until there are `--copies` of them, so that every run
reads as many files; start-up of the worker processes is excluded. Also measures the time of a random batch.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.layouts.brats import find_subjects
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.util.workers import worker_pool

WORKERS = 2
BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        paths = copy_subjects(args.scans, Path(scratch, "scans"), args.copies)
        reading, preparing = time_preparing(Path(scratch), paths, args.repeats)
        report(reading, preparing, args.copies, len(paths))
        report_batches(Path(scratch, "cohort"))


def time_preparing(
    folder: Path, paths: list[Path], repeats: int, workers: int = WORKERS
) -> tuple[list[float], list[float]]:
    """Seconds of reading and of preparing, by turns. `paths` are the files in folder/scans; writes folder/cohort."""
    out = folder / "cohort"
    with worker_pool(workers) as pool:
        plan = plan_cohort("brats21", folder / "scans")
        if pool is not None:
            list(pool.map(time.sleep, [0.5] * workers))  # workers up
        prepare(plan, out, workers, pool=pool, overwrite=True)  # and warm
        reading, preparing = [], []
        for _ in range(repeats):
            reading.append(seconds(lambda: read_all(paths)))
            preparing.append(seconds(lambda: prepare(plan, out, workers, pool=pool, overwrite=True)))
    return reading, preparing


def copy_subjects(scans: Path, source: Path, copies: int) -> list[Path]:
    subjects = find_subjects(scans)
    for number in range(copies):
        subject = subjects[number % len(subjects)]
        for role, path in [*subject.images.items(), *(("seg", mask) for mask in subject.masks)]:
            home = source / f"copy_{number:03d}"
            home.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, home / f"copy_{number:03d}_{role}.nii.gz")
    return sorted(source.rglob("*.nii.gz"))


def read_all(paths: list[Path]) -> None:
    for path in paths:
        np.asanyarray(nib.load(path).dataobj)  # type: ignore[attr-defined]


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def report(reading: list[float], preparing: list[float], n_scans: int, n_files: int) -> None:
    ratios = [p / r for p, r in zip(preparing, reading, strict=True)]
    print(f"{n_scans} scans, {n_files} files, median of {len(ratios)} runs")
    print(f"  reading, nibabel, 1 process     {statistics.median(reading):6.2f} s")
    print(f"  anofpdm prepare, {WORKERS} workers      {statistics.median(preparing):6.2f} s")
    print(
        f"  ratio                           {statistics.median(ratios):6.2f}   ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def report_batches(out: Path) -> None:
    cohort = open_cohort(out)
    chance = np.random.default_rng(0)
    times = [seconds(lambda: cohort.pixels(chance.integers(0, len(cohort), BATCH))) for _ in range(50)][10:]
    print(
        f"  random batch of {BATCH} slices, warm   {1000 * statistics.median(times):6.2f} ms  (of {len(cohort)} slices)"
    )


if __name__ == "__main__":
    main()
