"""Time of scoring a pair of mask files, relative to reading the two files, on one core.

    python benchmarks/scoring.py [PREDICTED TRUTH] [--label all] [--repeats 15] [--pairs 0]

Without files: synthetic glioma masks of 240 x 240 x 155 voxels (uint8, gzip), an irregular lesion of about 60 ml with
two satellites, and a prediction with other borders, one satellite missing and three false components. Reading and
scoring alternate; the ratio is that of the medians. `--pairs N` also scores the pair N / 4 and N times over all cores,
with the peak memory of this process and of the largest worker.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np

from anofpdm.evaluation.scoring.masks import Labels
from anofpdm.evaluation.scoring.pairs import Pair, Pairing
from anofpdm.evaluation.scoring.run import score_pair, score_pairs
from anofpdm.scans import read_volume

SHAPE = (240, 240, 155)
READING, SCORING = "reading both, nibabel", "reading and scoring"
PROCESSES = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--label", default="")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=0)
    args = parser.parse_args()
    labels: Labels = "all" if args.label == "all" else tuple(map(int, args.label.split(","))) if args.label else None
    with tempfile.TemporaryDirectory() as scratch:
        predicted, truth = args.files or synthetic_pair(Path(scratch))
        pair = Pair("scan", "scan", predicted, truth)
        scores = score_pair(pair, (labels, labels)).scores
        print(f"{scores.truth_ml:.0f} ml, DICE {scores.dice:.3f}, {args.repeats} runs, median")
        report_times(pair, labels, args.repeats)
        if args.pairs:
            report_many(pair, labels, args.pairs)


def synthetic_pair(folder: Path) -> list[Path]:
    masks = {
        "predicted.nii.gz": [(100, 130, 80, 23), (150, 60, 60, 5)],
        "truth.nii.gz": [(99, 131, 80, 24), (150, 61, 60, 5), (70, 90, 120, 4)],
    }
    paths = []
    for number, (name, balls) in enumerate(masks.items()):
        mask = np.zeros(SHAPE, dtype=np.uint8)
        for x, y, z, radius in balls:
            add_lesion(mask, (x, y, z), radius)
        if number == 0:
            mask[[60, 180, 120], [170, 100, 200], [30, 100, 60]] = 1
        paths.append(folder / name)
        nib.save(nib.Nifti1Image(mask, np.diag([-1.0, -1.0, 1.0, 1.0])), paths[-1])
    return paths


def add_lesion(mask: np.ndarray, centre: tuple[int, int, int], radius: float) -> None:
    """A ball with waves on its surface."""
    reach = int(1.4 * radius) + 1
    i, j, k = np.ogrid[-reach : reach + 1, -reach : reach + 1, -reach : reach + 1]
    waves = np.sin((i + centre[0]) / 2.7) + np.sin((j + centre[1]) / 3.1) + np.sin((k + centre[2]) / 2.3)
    inside = np.sqrt(i**2 + j**2 + k**2) < radius * (1 + 0.1 * waves)
    mask[tuple(slice(at - reach, at + reach + 1) for at in centre)] |= inside


def report_times(pair: Pair, labels: Labels, repeats: int) -> None:
    medians = time_pair(pair, labels, repeats)
    for name, seconds in medians.items():
        print(f"  {name:24s} {1000 * seconds:7.1f} ms")
    print(f"  ratio to nibabel         {medians[SCORING] / medians[READING]:7.2f}")


def time_pair(pair: Pair, labels: Labels, repeats: int) -> dict[str, float]:
    """Median seconds."""
    paths = (pair.predicted, pair.truth)
    actions: dict[str, Callable[[], object]] = {
        READING: lambda: [np.asanyarray(nib.load(path).dataobj) for path in paths],  # type: ignore[attr-defined]
        "reading both, anofpdm": lambda: [read_volume(path, allow_constant=True) for path in paths],
        SCORING: lambda: score_pair(pair, (labels, labels)),
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def report_many(pair: Pair, labels: Labels, count: int) -> None:
    """As `anofpdm score` does: in a process per core, with a bounded number of pairs waiting."""
    cores = len(os.sched_getaffinity(0))
    for number in (count // 4, count):
        start = time.perf_counter()
        score_pairs(Pairing([pair] * number), (labels, labels), cores)
        seconds = time.perf_counter() - start
        own, largest = (resource.getrusage(who).ru_maxrss / 1024 for who in PROCESSES)
        peak = f"peak memory {own:.0f} MiB, of a worker {largest:.0f} MiB"
        print(f"  {number} pairs, {cores} cores: {seconds:.1f} s, {1000 * seconds / number:.1f} ms a pair, {peak}")


if __name__ == "__main__":
    main()
