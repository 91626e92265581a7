"""What a fit will work on, from labels and file headers alone: before hours of preparing, and for --dry-run."""

import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from anofpdm.calibration.fit_calibration import CalibrationConfig
from anofpdm.choices import Raw, Split
from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.slice_labels import fill_between
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import AnoFPDMError, ScanWarning
from anofpdm.labels import HEALTHY, LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.scans.nifti import read_grid

DERIVED = "whose labels are derived from masks when they are prepared"


@dataclass
class Preview:
    plan: Plan
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    slices: Counter[tuple[Split, str]] = field(default_factory=Counter)  # by what is known of their label
    calibrated: int = 0  # slices at most, as slices without brain are counted too
    pseudo_labelled: int = 0  # likewise

    @property
    def evaluated(self) -> int:
        return min(self.calibrated, CalibrationConfig.most) + self.pseudo_labelled

    def describe(self) -> list[str]:
        n_failed, modalities = len(self.failed), ", ".join(self.plan.modalities)
        lines = [f"{len(self.plan.subjects) - n_failed} scans of {modalities} can be read, {n_failed} cannot"]
        usable = {subject.patient for subject in self.plan.subjects if subject.name not in self.failed}
        for split in Split:
            patients = [patient for patient in usable if self.plan.split[patient] == split]
            counts = [f"{count} {label}" for (of, label), count in self.slices.items() if of == split]
            if patients:
                lines.append(f"{split}: {len(patients)} patients; slices: {', '.join(counts)}")
        return lines + [f"failed: {scan}: {reason}" for scan, reason in self.failed.items()]


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
        split, given = plan.split[subject.patient], plan.labels
        seen.slices.update((split, DERIVED if given is None else LABEL_NAMES[label]) for label in labels)
        if split is Split.TRAIN:
            seen.pseudo_labelled += int((labels != HEALTHY).sum())
        elif split is Split.VAL:
            every = given is None or given.scan_label(subject.name, subject.patient) == UNHEALTHY
            seen.calibrated += len(labels) if every else int((labels != NULL).sum())
    return seen


def _slice_labels(plan: Plan, subject: Subject) -> np.ndarray:
    """[n] of the axial slices; those of raw studies are not known before they are registered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)
        grids = [read_grid(path) for path in (*subject.images.values(), *subject.masks)]
    count = grids[0].shape[grids[0].axial_axis]
    if plan.labels is None:
        return np.full(count, NULL)
    if plan.raw.raw is not Raw.NEVER and len({grid.shape for grid in grids}) > 1:
        count = max(count, 1 + max(plan.labels.slices_of(subject.name, subject.patient), default=0))
    labels = plan.labels.slice_labels(subject.name, subject.patient, count)
    return fill_between(labels, plan.fill_labels_mm / grids[0].slice_mm) if plan.fill_labels_mm else labels
