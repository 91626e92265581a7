"""A prepared cohort with fewer image-level labels: of some validation patients, or of whole scans.

    python benchmarks/labels.py COHORT OUT --val-patients 4    labels of four validation patients
    python benchmarks/labels.py COHORT OUT --scans 1           labels of whole scans, and of one slice of unhealthy ones

OUT shares its slices with COHORT (hard links); only labels differ. --val-patients changes the validation split only;
its other slices become unlabelled. --scans simulates patients and controls, because these cohorts have no healthy
scans: of half of the patients, only the healthy slices are labelled; scans of the others are labelled unhealthy as a
whole. It changes training and validation.
"""

import argparse
import csv
import hashlib
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.labels import LABEL_NAMES, NULL, UNHEALTHY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("out", type=Path)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--val-patients", type=int)
    choice.add_argument("--scans", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    cohort, rng = open_cohort(args.cohort), np.random.default_rng(args.seed)
    labels, unhealthy_scans = cohort.labels.copy(), set[str]()
    train, val = cohort.rows("train"), cohort.rows("val")
    if args.scans is None:
        chosen = rng.permutation(np.unique(cohort.patients[val]))[: args.val_patients]
        labels[val[~np.isin(cohort.patients[val], chosen)]] = NULL
    else:
        for rows in (train, val):
            unhealthy_scans |= label_scans(cohort, labels, rows, args.scans, rng)
    unfinished = args.out.with_name(f"{args.out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(args.cohort, unfinished, copy_function=os.link)
    write_labels(unfinished, labels, unhealthy_scans)
    unfinished.rename(args.out)
    counts = (f"{np.count_nonzero(labels[train] == label)} {name}" for label, name in enumerate(LABEL_NAMES))
    print(f"{args.out}: training slices {', '.join(counts)}")


def label_scans(cohort: Cohort, labels: np.ndarray, rows: np.ndarray, count: int, rng: np.random.Generator) -> set[str]:
    """Change the labels of these rows: half of the patients are controls. Returns the scans of the others, which keep
    the labels of `count` slices each."""
    patients = rng.permutation(np.unique(cohort.patients[rows]))
    is_control = np.isin(cohort.patients[rows], patients[: len(patients) // 2])
    controls, others = rows[is_control], rows[~is_control]
    labels[controls[labels[controls] == UNHEALTHY]] = NULL
    scans = np.unique(cohort.scans[others])
    kept = [rng.permutation(others[cohort.scans[others] == scan])[:count] for scan in scans]
    labels[np.setdiff1d(others, np.concatenate([others[:0], *kept]))] = NULL
    return set(scans.tolist())


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
