"""Times of `anofpdm prepare` and `anofpdm score`, relative to reading the same files with nibabel.

    python benchmarks/files.py [--patients 20] [--pairs 0]

Prepares phantoms (four modalities and a mask each), and scores synthetic glioma masks of 240 x 240 x 155 voxels: an
irregular lesion of about 60 ml with two satellites, and a prediction with other borders, one satellite missing and
three false components. `--pairs N` also scores the pair N times over all cores, with the peak memory of this process
and of the largest worker.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import nibabel as nib
import numpy as np

from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.phantoms.phantom_cohort import write_phantoms
from anofpdm.scoring.pairs import Pair, Pairing
from anofpdm.scoring.score_pairs import score_pair, score_pairs

SHAPE = (240, 240, 155)
PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
Times = tuple[list[float], list[float]]  # of reading, and of the command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        report("prepare, two workers", time_preparing(folder, args.patients, repeats=5, workers=2))
        pair = synthetic_pair(folder)
        report("score", time_scoring(pair, repeats=15))
        if args.pairs:
            report_many(pair, args.pairs)


def report(name: str, times: Times) -> None:
    reading, command = map(statistics.median, times)
    print(f"{name:22s} reading {1000 * reading:8.1f} ms, command {1000 * command:8.1f} ms, ratio {ratio(times):.2f}")


def ratio(times: Times) -> float:
    return statistics.median(times[1]) / statistics.median(times[0])


def by_turns(reading: Callable[[], object], command: Callable[[], object], repeats: int) -> Times:
    times: Times = ([], [])
    for _ in range(repeats):
        for action, measured in zip((reading, command), times, strict=True):
            start = time.perf_counter()
            action()
            measured.append(time.perf_counter() - start)
    return times


def read_all(paths: Sequence[Path]) -> None:
    for path in paths:
        np.asanyarray(nib.load(path).dataobj)  # type: ignore[attr-defined]


def time_preparing(folder: Path, patients: int, repeats: int, workers: int) -> Times:
    scans = folder / "scans"
    write_phantoms(scans, "tumour", patients, 0, workers=2)
    paths = sorted(scans.rglob("*.nii.gz"))
    plan = plan_cohort("brats21", scans)
    return by_turns(lambda: read_all(paths), lambda: prepare(plan, folder / "cohort", workers, overwrite=True), repeats)


def time_scoring(pair: Pair, repeats: int) -> Times:
    return by_turns(lambda: read_all([pair.predicted, pair.truth]), lambda: score_pair(pair, (None, None)), repeats)


def report_many(pair: Pair, count: int) -> None:
    cores, start = len(os.sched_getaffinity(0)), time.perf_counter()
    score_pairs(Pairing([pair] * count), (None, None), cores)
    seconds = time.perf_counter() - start
    own, largest = (resource.getrusage(who).ru_maxrss / 1024 for who in PROCESSES)
    print(f"{count} pairs, {cores} cores: {seconds:.1f} s; peak memory {own:.0f} MiB, of a worker {largest:.0f} MiB")


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


if __name__ == "__main__":
    main()
