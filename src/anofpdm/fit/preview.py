"""What a fit will work on, from labels and file headers alone: before hours of preparing, and for --dry-run."""

import time
import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.slice_labels import fill_between
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import AnoFPDMError, ScanWarning
from anofpdm.fit.estimate import Work
from anofpdm.labels import HEALTHY, LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.options import Raw, Split
from anofpdm.scans import Grid
from anofpdm.scans.nifti import read_grid

MAX_SECONDS = 20.0  # of reading headers


@dataclass
class Preview:
    plan: Plan
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    patients: dict[Split, set[str]] = field(default_factory=lambda: {split: set() for split in Split})
    labels: Counter[tuple[Split, int]] = field(default_factory=Counter)  # slices
    suspected: Counter[Split] = field(default_factory=Counter)  # unlabelled slices of scans labelled unhealthy
    scans: int = 0  # that can be read
    not_read: int = 0  # the time was up

    @property
    def work(self) -> Work:
        """At most: slices without brain are counted too."""
        share = len(self.plan.subjects) / max(1, self.scans + len(self.failed))  # as if the others were like these
        val = sum(self.labels[Split.VAL, label] for label in (HEALTHY, UNHEALTHY)) + self.suspected[Split.VAL]
        train = sum(self.labels[Split.TRAIN, label] for label in (UNHEALTHY, NULL))
        if self.plan.labels is None:  # not known yet: all are labelled, perhaps half of them unhealthy
            val, train = self.labels[Split.VAL, NULL], train // 2
        return Work(round(val * share), round(train * share))

    def describe(self) -> list[str]:
        lines = [f"{self.scans} scans of {', '.join(self.plan.modalities)} can be read, {len(self.failed)} cannot"]
        for split, patients in self.patients.items():
            if patients:
                lines.append(f"{split}: {len(patients)} patients; slices: {self._describe_slices(split)}")
        if self.not_read:
            lines.append(f"note: the headers of {self.not_read} scans were not read, to save time")
        return lines + [f"failed: {scan}: {reason}" for scan, reason in self.failed.items()]

    def _describe_slices(self, split: Split) -> str:
        if self.plan.labels is None:
            return f"{self.labels[split, NULL]}, whose labels are derived from masks when they are prepared"
        return ", ".join(f"{self.labels[split, label]} {name}" for label, name in enumerate(LABEL_NAMES))


def preview(plan: Plan) -> Preview:
    seen, start = Preview(plan), time.monotonic()
    for number, subject in enumerate(plan.subjects):
        if time.monotonic() - start > MAX_SECONDS:
            seen.not_read = len(plan.subjects) - number
            break
        try:
            _add(seen, subject)
        except (AnoFPDMError, OSError) as problem:
            seen.failed[subject.name] = str(problem)
    return seen


def _add(seen: Preview, subject: Subject) -> None:
    if subject.problem:
        seen.failed[subject.name] = subject.problem
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)
        grids = [read_grid(path) for path in (*subject.images.values(), *subject.masks)]
    labels, split = _labels(seen.plan, subject, grids), seen.plan.split[subject.patient]
    seen.scans += 1
    seen.patients[split].add(subject.patient)
    for label in labels.tolist():
        seen.labels[split, label] += 1
    if seen.plan.labels is not None and seen.plan.labels.scans.get(_name(seen.plan, subject)) == UNHEALTHY:
        seen.suspected[split] += int((labels == NULL).sum())


def _labels(plan: Plan, subject: Subject, grids: list[Grid]) -> np.ndarray:
    """[n] of the axial slices; those of raw studies are not known before they are registered."""
    grid = grids[0]
    count = grid.shape[grid.axial_axis]
    if plan.labels is None:
        return np.full(count, NULL)
    if plan.raw.raw is not Raw.NEVER and len({one.shape for one in grids}) > 1:
        count = max(count, 1 + max(plan.labels.slices.get(_name(plan, subject), {0: 0})))
    labels = plan.labels.slice_labels(_name(plan, subject), count)
    return fill_between(labels, plan.fill_labels_mm / grid.slice_mm) if plan.fill_labels_mm else labels


def _name(plan: Plan, subject: Subject) -> str:
    """Of the scan in the label file."""
    return subject.name if plan.labels is not None and subject.name in plan.labels.subjects else subject.patient
