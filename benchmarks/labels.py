"""A prepared cohort with fewer or worse image-level labels: how many are enough?

    python benchmarks/labels.py COHORT OUT --share 0.1         labels of a tenth of the training slices
    python benchmarks/labels.py COHORT OUT --wrong 0.05        a twentieth of all labels are wrong
    python benchmarks/labels.py COHORT OUT --small 50          slices with lesions below 50 pixels are labelled healthy
    python benchmarks/labels.py COHORT OUT --per-scan 3        labels of three slices of each training scan
    python benchmarks/labels.py COHORT OUT --every 5           labels of every fifth slice of each training scan
    python benchmarks/labels.py COHORT OUT --val-patients 4    labels of four validation patients
    python benchmarks/labels.py COHORT OUT --scans 1           labels of whole scans, and of one slice of unhealthy ones
    python benchmarks/labels.py COHORT OUT --wrong 0.05 --drop-isolated    without labels unlike both neighbours'
    python benchmarks/labels.py COHORT OUT --every 5 --fill 20             unlabelled slices between two with the same
                                                                           label, at most 20 mm apart, get that label

OUT shares its slices with COHORT (hard links); only labels differ. --share, --per-scan and --every change the training
split only, --val-patients the validation split only; their other slices become unlabelled. --wrong and --small change
both.
`--small` reads lesion masks, as a simulation of readers who overlook small lesions. `--scans` simulates patients and
controls, because these cohorts have no healthy scans: of half of the patients, only the healthy slices are labelled;
scans of the others are labelled unhealthy as a whole. It changes training and validation.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.cohorts.slice_labels import fill_between, isolated_labels
from anofpdm.labels import HEALTHY, LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.scoring.metrics.lesions import lesion_area
from anofpdm.scoring.truth import Truth


def main() -> None:
    args = arguments().parse_args()
    cohort = open_cohort(args.cohort)
    labels, unhealthy_scans = degraded(cohort, args)
    if args.drop_isolated:
        drop_isolated(cohort, labels)
    if args.fill:
        fill(cohort, labels, args.fill)
    unfinished = args.out.with_name(f"{args.out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(args.cohort, unfinished, copy_function=os.link)
    write_labels(unfinished, labels, unhealthy_scans)
    unfinished.rename(args.out)
    train = open_cohort(args.out).labels[cohort.rows("train")]
    counts = ", ".join(f"{np.count_nonzero(train == label)} {name}" for label, name in enumerate(LABEL_NAMES))
    wrong = np.count_nonzero((train != NULL) & (train != cohort.labels[cohort.rows("train")]))
    print(f"{args.out}: training slices {counts}; {wrong} labels wrong")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("out", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--share", type=float)
    how.add_argument("--wrong", type=float)
    how.add_argument("--small", type=float)
    how.add_argument("--per-scan", type=int)
    how.add_argument("--every", type=int)
    how.add_argument("--val-patients", type=int)
    how.add_argument("--scans", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--drop-isolated", action="store_true", help="Leave out labels unlike those of both neighbours."
    )
    parser.add_argument("--fill", type=float, default=0.0, help="mm: label slices between two of the same label.")
    return parser


def degraded(cohort: Cohort, args: argparse.Namespace) -> tuple[np.ndarray, set[str]]:
    """[N] labels, and scans that are labelled unhealthy as a whole."""
    rng, labels = np.random.default_rng(args.seed), cohort.labels.copy()
    train, val = cohort.rows("train"), cohort.rows("val")
    both = np.concatenate([train, val])
    if args.scans is not None:
        parts = [label_scans(cohort, labels, rows, args.scans, rng) for rows in (train, val)]
        return labels, set.union(*parts)
    if args.share is not None:
        labels[rng.permutation(train)[round(args.share * len(train)) :]] = NULL
    elif args.per_scan is not None:
        labels[np.setdiff1d(train, some_of_each_scan(cohort, train, args.per_scan, rng))] = NULL
    elif args.every is not None:
        labels[np.setdiff1d(train, every_of_each_scan(cohort, train, args.every, rng))] = NULL
    elif args.val_patients is not None:
        chosen = rng.permutation(np.unique(cohort.patients[val]))[: args.val_patients]
        labels[val[~np.isin(cohort.patients[val], chosen)]] = NULL
    elif args.wrong is not None:
        labelled = both[labels[both] != NULL]
        some = rng.permutation(labelled)[: round(args.wrong * len(labelled))]
        labels[some] = np.where(labels[some] == HEALTHY, UNHEALTHY, HEALTHY)
    else:
        areas = lesion_area(Truth(cohort).masks(both))
        labels[both[(areas > 0) & (areas < args.small)]] = HEALTHY
    return labels, set()


def label_scans(cohort: Cohort, labels: np.ndarray, rows: np.ndarray, count: int, rng: np.random.Generator) -> set[str]:
    """Change the labels of these rows: half of the patients are controls. Returns the scans of the others, which keep
    the labels of `count` slices each."""
    patients = rng.permutation(np.unique(cohort.patients[rows]))
    is_control = np.isin(cohort.patients[rows], patients[: len(patients) // 2])
    controls, others = rows[is_control], rows[~is_control]
    labels[controls[labels[controls] == UNHEALTHY]] = NULL
    labels[np.setdiff1d(others, some_of_each_scan(cohort, others, count, rng))] = NULL
    return set(scans_of(cohort, others).tolist())


def some_of_each_scan(cohort: Cohort, rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    picked = [rng.permutation(rows[cohort.scans[rows] == scan])[:count] for scan in scans_of(cohort, rows)]
    return np.concatenate([rows[:0], *picked])


def every_of_each_scan(cohort: Cohort, rows: np.ndarray, step: int, rng: np.random.Generator) -> np.ndarray:
    """Every `step`-th slice of each scan, from a random one of the first."""
    picked = [rows[cohort.scans[rows] == scan][rng.integers(step) :: step] for scan in scans_of(cohort, rows)]
    return np.concatenate([rows[:0], *picked])


def drop_isolated(cohort: Cohort, labels: np.ndarray) -> None:
    """In training and validation."""
    for rows, native in native_labels(cohort, labels):
        native[isolated_labels(native)] = NULL
        labels[rows] = native[cohort.indices[rows]]


def fill(cohort: Cohort, labels: np.ndarray, most_mm: float) -> None:
    """In training and validation."""
    for rows, native in native_labels(cohort, labels):
        labels[rows] = fill_between(native, most_mm / cohort.spacing_mm[rows[0]])[cohort.indices[rows]]


def native_labels(cohort: Cohort, labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of every scan for training or validation: its rows, and the labels of all its slices."""
    for scan in scans_of(cohort, np.concatenate([cohort.rows("train"), cohort.rows("val")])):
        rows = np.flatnonzero(cohort.scans == scan)
        native = np.full(cohort.indices[rows].max() + 1, NULL)
        native[cohort.indices[rows]] = labels[rows]
        yield rows, native


def scans_of(cohort: Cohort, rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.unique(cohort.scans[rows]))


def write_labels(folder: Path, labels: np.ndarray, unhealthy_scans: set[str]) -> None:
    with (folder / "slices.csv").open(newline="") as file:
        slices = [{**row, "label": LABEL_NAMES[label]} for row, label in zip(csv.DictReader(file), labels, strict=True)]
    with (folder / "scans.csv").open(newline="") as file:
        scans = list(csv.DictReader(file))
    if unhealthy_scans:
        scans = [{**row, "label": "unhealthy" * (row["scan"] in unhealthy_scans)} for row in scans]
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, rows in (("slices.csv", slices), ("scans.csv", scans)):
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        manifest["tables_sha256"][name] = hashlib.sha256(buffer.getvalue().encode()).hexdigest()
        replace_file(folder / name, buffer.getvalue().encode())
    replace_file(folder / "manifest.json", json.dumps(manifest, indent=2).encode())


def replace_file(path: Path, data: bytes) -> None:
    """A new file: the old one is also the original cohort's."""
    path.unlink()
    path.write_bytes(data)


if __name__ == "__main__":
    main()
