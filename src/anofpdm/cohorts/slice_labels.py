"""Image-level labels of the slices of a prepared scan, and the tables of a cohort that hold them.

A lesion in a single thin slice is rare, so that a label unlike those of both adjacent slices is probably an error. In
training and validation such labels are left out, as if they had not been given: a few wrong labels weaken the guidance
much more than missing ones. Where only every tenth slice is labelled, those between two with the same label can get it,
too.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from anofpdm.choices import Split
from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.writer import ScanEntry
from anofpdm.labels import LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.util.files import encode_csv

THIN_MM = 3.0  # between slices; measured with 2 mm
TOLERANCE_MM = 1e-3  # headers are rounded


def slice_labels(plan: Plan, entry: ScanEntry) -> np.ndarray:
    """[n kept slices]: from the label file if there is one, else from the mask, else NULL."""
    if plan.labels is not None:
        labels = plan.labels.slice_labels(entry.scan, entry.patient, entry.n_native)
        if _leaves_out_isolated(plan, entry):
            labels[isolated_labels(labels)] = NULL
        if plan.fill_labels_mm and entry.split != Split.TEST:
            labels = fill_between(labels, plan.fill_labels_mm / entry.spacing_mm)
        return np.asarray(labels[entry.indices])
    if entry.lesion is not None:
        return np.array(entry.lesion, dtype=int)
    return np.full(len(entry.indices), NULL)


def label_notes(plan: Plan, entry: ScanEntry) -> list[str]:
    """On labelled slices that were dropped because they show too little brain, and on labels that may be wrong."""
    if plan.labels is None:
        return []
    what = "left out" if _leaves_out_isolated(plan, entry) else "kept"
    labels = plan.labels.slice_labels(entry.scan, entry.patient, entry.n_native)
    labelled = plan.labels.slices_of(entry.scan, entry.patient)
    notes = {
        "labelled slices with too little brain were skipped": sorted(labelled.keys() - set(entry.indices)),
        f"labelled unlike both adjacent slices, check these labels ({what})": isolated_labels(labels),
    }
    return [f"{note}: {', '.join(map(str, indices))}" for note, indices in notes.items() if indices]


def cohort_tables(plan: Plan, entries: Sequence[ScanEntry]) -> dict[str, bytes]:
    """The three CSV files, by name."""
    slices, scans = [], []
    for entry in entries:
        labels = slice_labels(plan, entry)
        slices += [(entry.scan, index, LABEL_NAMES[label]) for index, label in zip(entry.indices, labels, strict=True)]
        is_unhealthy = plan.labels is not None and plan.labels.scan_label(entry.scan, entry.patient) == UNHEALTHY
        scans.append(
            (entry.scan, entry.patient, len(entry.indices), entry.n_native, entry.pixel_mm, entry.spacing_mm,
             int(entry.lesion is not None), LABEL_NAMES[UNHEALTHY] if is_unhealthy else "", entry.sha256)
        )  # fmt: skip
    columns = ("scan", "patient", "slices", "native_slices", "pixel_mm", "spacing_mm", "mask", "label", "sha256")
    split = {entry.patient: entry.split for entry in entries}
    return {
        "slices.csv": encode_csv(("scan", "slice", "label"), slices),
        "scans.csv": encode_csv(columns, scans),
        "split.csv": encode_csv(("patient", "split"), sorted(split.items())),
    }


def isolated_labels(labels: np.ndarray) -> list[int]:
    """Of the slices of a scan [n], those labelled healthy between two unhealthy ones, or the reverse."""
    below, own, above = labels[:-2], labels[1:-1], labels[2:]
    isolated = (below == above) & (own != below) & (own != NULL) & (below != NULL)
    return (1 + np.flatnonzero(isolated)).tolist()


def fill_between(labels: np.ndarray, most: float) -> np.ndarray:
    """Of the slices of a scan [n]: those between two with the same label, at most `most` slices apart, get it, too."""
    filled, known = labels.copy(), np.flatnonzero(labels != NULL)
    for below, above in itertools.pairwise(known.tolist()):
        if labels[below] == labels[above] and above - below <= most + TOLERANCE_MM:
            filled[below:above] = labels[below]
    return filled


def _leaves_out_isolated(plan: Plan, entry: ScanEntry) -> bool:
    thin = not plan.unknown_spacing and entry.spacing_mm <= THIN_MM + TOLERANCE_MM
    return thin and not plan.keep_isolated and entry.split != Split.TEST
