"""A prepared cohort with fewer or worse image-level labels: how many are enough?

    python benchmarks/labels.py COHORT OUT --share 0.1         labels of a tenth of the training slices
    python benchmarks/labels.py COHORT OUT --wrong 0.05        a twentieth of all labels are wrong
    python benchmarks/labels.py COHORT OUT --small 50          slices with lesions below 50 pixels are labelled healthy
    python benchmarks/labels.py COHORT OUT --per-scan 3        labels of three slices of each training scan
    python benchmarks/labels.py COHORT OUT --val-patients 4    labels of four validation patients

OUT shares its slices with COHORT (hard links); only labels differ. --share and --per-scan change the training split
only, --val-patients the validation split only; their other slices become unlabelled. --wrong and --small change both.
`--small` reads lesion masks, as a simulation of readers who overlook small lesions.
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
from anofpdm.evaluation.metrics.lesions import lesion_area
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import HEALTHY, LABEL_NAMES, NULL, UNHEALTHY

TABLE = "slices.csv"


def main() -> None:
    args = arguments().parse_args()
    cohort = open_cohort(args.cohort)
    labels = degraded(cohort, args)
    shutil.copytree(args.cohort, args.out, copy_function=os.link)
    write_labels(args.out, labels)
    train = open_cohort(args.out).labels[cohort.rows("train")]
    counts = ", ".join(f"{np.count_nonzero(train == label)} {name}" for label, name in enumerate(LABEL_NAMES))
    print(f"{args.out}: training slices {counts}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("out", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--share", type=float)
    how.add_argument("--wrong", type=float)
    how.add_argument("--small", type=float)
    how.add_argument("--per-scan", type=int)
    how.add_argument("--val-patients", type=int)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def degraded(cohort: Cohort, args: argparse.Namespace) -> np.ndarray:
    """[N] labels."""
    rng, labels, train = np.random.default_rng(args.seed), cohort.labels.copy(), cohort.rows("train")
    both = np.concatenate([train, cohort.rows("val")])
    if args.share is not None:
        labels[rng.permutation(train)[round(args.share * len(train)) :]] = NULL
    elif args.per_scan is not None:
        kept = [
            rng.permutation(train[cohort.scans[train] == scan])[: args.per_scan] for scan in scans_of(cohort, train)
        ]
        labels[np.setdiff1d(train, np.concatenate(kept))] = NULL
    elif args.val_patients is not None:
        val = cohort.rows("val")
        patients = np.asarray(cohort.patients[val])
        chosen = rng.permutation(np.unique(patients))[: args.val_patients]
        labels[val[~np.isin(patients, chosen)]] = NULL
    elif args.wrong is not None:
        labelled = both[labels[both] != NULL]
        some = rng.permutation(labelled)[: round(args.wrong * len(labelled))]
        labels[some] = np.where(labels[some] == HEALTHY, UNHEALTHY, HEALTHY)
    else:
        areas = lesion_area(Truth(cohort).masks(both))
        labels[both[(areas > 0) & (areas < args.small)]] = HEALTHY
    return labels


def scans_of(cohort: Cohort, rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.unique(cohort.scans[rows]))


def write_labels(folder: Path, labels: np.ndarray) -> None:
    with (folder / TABLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "label": LABEL_NAMES[label]} for row, label in zip(rows, labels, strict=True))
    manifest = json.loads((folder / "manifest.json").read_text())
    table = buffer.getvalue().encode()
    manifest["tables_sha256"][TABLE] = hashlib.sha256(table).hexdigest()
    replace_file(folder / TABLE, table)
    replace_file(folder / "manifest.json", json.dumps(manifest, indent=2).encode())


def replace_file(path: Path, data: bytes) -> None:
    """A new file: the old one is also the original cohort's."""
    path.unlink()
    path.write_bytes(data)


if __name__ == "__main__":
    main()
