"""What a fit will work on, from labels and file headers alone: before hours of preparing, and for --dry-run."""

import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from anofpdm.choices import Raw, Split
from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.slice_labels import fill_between
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import AnoFPDMError, ScanWarning
from anofpdm.fit.estimate import Work
from anofpdm.labels import HEALTHY, LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.scans.nifti import read_grid


@dataclass
class Preview:
    plan: Plan
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    patients: dict[Split, set[str]] = field(default_factory=lambda: {split: set() for split in Split})
    labels: Counter[tuple[Split, int]] = field(default_factory=Counter)  # slices
    suspected: int = 0  # unlabelled slices of validation scans that are labelled unhealthy

    @property
    def work(self) -> Work:
        """At most: slices without brain are counted too."""
        labels = self.labels
        train = labels[Split.TRAIN, UNHEALTHY] + labels[Split.TRAIN, NULL]
        if self.plan.labels is None:  # not known yet: all are labelled, perhaps half of them unhealthy
            return Work(labels[Split.VAL, NULL], train // 2)
        return Work(labels[Split.VAL, HEALTHY] + labels[Split.VAL, UNHEALTHY] + self.suspected, train)

    def describe(self) -> list[str]:
        n_failed, modalities = len(self.failed), ", ".join(self.plan.modalities)
        lines = [f"{len(self.plan.subjects) - n_failed} scans of {modalities} can be read, {n_failed} cannot"]
        for split, patients in self.patients.items():
            if patients:
                lines.append(f"{split}: {len(patients)} patients; slices: {self._describe_slices(split)}")
        return lines + [f"failed: {scan}: {reason}" for scan, reason in self.failed.items()]

    def _describe_slices(self, split: Split) -> str:
        if self.plan.labels is None:
            return f"{self.labels[split, NULL]}, whose labels are derived from masks when they are prepared"
        return ", ".join(f"{self.labels[split, label]} {name}" for label, name in enumerate(LABEL_NAMES))


def preview(plan: Plan) -> Preview:
    seen = Preview(plan)
    for subject in plan.subjects:
        try:
            if subject.problem:
                raise AnoFPDMError(subject.problem)
            labels = _slice_labels(plan, subject)
        except (AnoFPDMError, OSError) as problem:
            seen.failed[subject.name] = str(problem)
            continue
        split = plan.split[subject.patient]
        seen.patients[split].add(subject.patient)
        seen.labels.update((split, label) for label in labels.tolist())
        if split == Split.VAL and plan.labels is not None and plan.labels.is_unhealthy(subject.name, subject.patient):
            seen.suspected += int((labels == NULL).sum())
    return seen


def _slice_labels(plan: Plan, subject: Subject) -> np.ndarray:
    """[n] of the axial slices; those of raw studies are not known before they are registered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)
        grids = [read_grid(path) for path in (*subject.images.values(), *subject.masks)]
    count = grids[0].shape[grids[0].axial_axis]
    if plan.labels is None:
        return np.full(count, NULL)
    name = plan.labels.subject_of(subject.name, subject.patient)
    if plan.raw.raw is not Raw.NEVER and len({grid.shape for grid in grids}) > 1:
        count = max(count, 1 + max(plan.labels.slices.get(name, {0: 0})))
    labels = plan.labels.slice_labels(name, count)
    return fill_between(labels, plan.fill_labels_mm / grids[0].slice_mm) if plan.fill_labels_mm else labels
