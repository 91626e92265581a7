"""Time to generate phantoms, and DICE of a plain intensity threshold on them.

    python benchmarks/phantom.py [--patients 24] [--seed 0]

The threshold is one number for all slices, tuned with masks on a grid: a baseline that uses no anatomy. Times are with
two workers, including writing, without start-up.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.cohorts.phantoms.cohort import write_phantoms
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import HEALTHY, UNHEALTHY

WORKERS = 2
CUTS = np.linspace(0.01, 0.99, 99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{args.patients} patients, seed {args.seed}, 128 x 128 x 60")
    print("kind     s/patient   healthy slices   threshold DICE")
    for kind, layout, modality in (("tumour", "brats21", "flair"), ("stroke", "atlas2", "t1")):
        with tempfile.TemporaryDirectory() as folder:
            scans, out = Path(folder, "scans"), Path(folder, "cohort")
            seconds = time_phantoms(scans, kind, args.patients, args.seed)
            prepare(plan_cohort(layout, scans), out, WORKERS)
            cohort = open_cohort(out)
            dice = best_threshold_dice(cohort, modality, bright=kind == "tumour")
            print(f"{kind:8s} {seconds:9.2f} {(cohort.labels == HEALTHY).mean():16.0%} {dice:16.3f}")


def time_phantoms(scans: Path, kind: str, patients: int, seed: int) -> float:
    """Seconds a patient, counted from the first ones on."""
    marks: list[tuple[float, float]] = []

    def report(task: str, done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        marks.append((time.perf_counter(), done))

    write_phantoms(scans, kind, patients, seed, workers=WORKERS, on_progress=report)
    start, end = marks[WORKERS], marks[-1]
    return (end[0] - start[0]) / (end[1] - start[1])


def best_threshold_dice(cohort: Cohort, modality: str, *, bright: bool) -> float:
    """Mean over unhealthy slices, for the best cut of all."""
    rows = np.flatnonzero(cohort.labels == UNHEALTHY)
    images = cohort.pixels(rows)[:, cohort.modalities.index(modality)] / 2 + 0.5  # [n, size, size] in [0, 1]
    masks = Truth(cohort).masks(rows)
    found = [images > cut if bright else (images < cut) & (images > 0) for cut in CUTS]
    return max(float(mean_dice(one, masks)) for one in found)


def mean_dice(found: np.ndarray, masks: np.ndarray) -> float:
    both = (found & masks).sum(axis=(1, 2))
    return float((2 * both / (found.sum(axis=(1, 2)) + masks.sum(axis=(1, 2)))).mean())


if __name__ == "__main__":
    main()
