"""What limits the detectors: sensitivity by lesion size, specificity beside lesions, AUC without the hard slices.

    python benchmarks/detection_limits.py SCORES [--method anofpdm-ddim ...]

SCORES is a folder of `anofpdm evaluate`. A slice counts as hard if it is unhealthy with a lesion of at most 50 pixels
(at 128 x 128), or healthy beside an unhealthy slice of its scan: the end of a lesion lies between the two, and the
label follows from a few pixels.
"""

import argparse
import csv
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.evaluation.metrics.lesions import SIZES
from anofpdm.method.detection import auc

METHODS = ("anofpdm-ddim", "anofpdm-curve", "anofpdm-student")  # the cosine, the curve and the student's detector
SMALL = SIZES[0]


@dataclass(frozen=True)
class Detected:
    """Slices of one method; [n] each."""

    pixels: np.ndarray  # of lesion
    detected: np.ndarray
    score: np.ndarray
    near: np.ndarray  # healthy, with an unhealthy neighbour

    @property
    def unhealthy(self) -> np.ndarray:
        return np.asarray(self.pixels > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--method", action="append")
    args = parser.parse_args()
    tables = read(args.scores / "slices.csv", args.method or METHODS)
    if not tables:
        sys.exit(f"{args.scores}: none of {', '.join(args.method or METHODS)} was evaluated in the mixed setup")
    bins = [f"lesion {low + 1}-{high}" for low, high in zip((0, *SIZES[:-1]), SIZES, strict=True)]
    columns = [*bins, f"lesion over {SIZES[-1]}", "healthy beside", "healthy away", "accuracy", "AUC", "without hard"]
    print(f"| detector of | {' | '.join(columns)} |\n|{' --- |' * (1 + len(columns))}")
    for name, table in tables.items():
        print(f"| {name} | {' | '.join(cells(table))} |")
    table = next(iter(tables.values()))
    counts = [int(which.sum()) for which in groups(table)]
    print(f"| slices | {' | '.join(map(str, counts))} | {len(table.pixels)} | | {int((~hard(table)).sum())} |")


def read(path: Path, methods: Sequence[str]) -> dict[str, Detected]:
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["setup"] == "mixed" and row["method"] in methods]
    if not rows:
        return {}
    first = rows[0]["seed"]
    of_method = {name: [row for row in rows if row["method"] == name and row["seed"] == first] for name in methods}
    return {name: table(some) for name, some in of_method.items() if some}


def table(rows: Sequence[dict[str, str]]) -> Detected:
    pixels = np.array([float(row["lesion_pixels"]) for row in rows])
    places = [(row["scan"], int(row["slice"])) for row in rows]
    found = dict(zip(places, pixels > 0, strict=True))
    numbers: dict[str, list[int]] = {}
    for scan, number in places:
        numbers.setdefault(scan, []).append(number)
    beside = set()
    for scan, some in numbers.items():
        ordered = sorted(some)
        for one, other in itertools.pairwise(ordered):
            if found[scan, one] != found[scan, other]:
                beside |= {(scan, one), (scan, other)}
    return Detected(
        pixels,
        np.array([row["detected"] in ("1", "True", "1.0") for row in rows]),
        np.array([float(row["score"]) for row in rows]),
        np.array([place in beside and not found[place] for place in places]),
    )


def groups(table: Detected) -> list[np.ndarray]:
    edges = (0, *SIZES, np.inf)
    sizes = [(table.pixels > low) & (table.pixels <= high) for low, high in itertools.pairwise(edges)]
    return [*sizes, table.near, ~table.unhealthy & ~table.near]


def hard(table: Detected) -> np.ndarray:
    return np.asarray((table.unhealthy & (table.pixels <= SMALL)) | table.near)


def cells(table: Detected) -> list[str]:
    """Share of slices that are called what they are; accuracy; AUC of all slices and of those that are not hard."""
    correct, easy = table.detected == table.unhealthy, ~hard(table)
    shares = [f"{100 * correct[which].mean():.0f}%" if which.any() else "-" for which in groups(table)]
    aucs = [auc(table.score, table.unhealthy), auc(table.score[easy], table.unhealthy[easy])]
    return [*shares, f"{100 * correct.mean():.1f}%", *(f"{one:.3f}" for one in aucs)]


if __name__ == "__main__":
    main()
