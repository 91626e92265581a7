"""Whole scans of one split of a prepared cohort, found by patient name in a folder of source files.

The cohort may have been prepared from other files of the same patients, for example from slices.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from anofpdm.choices import Layout, Split, parse
from anofpdm.cohorts.plan import find_subjects
from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.segment.inputs import BIDS_LAYOUTS, Target, check_names
from anofpdm.segment.scan_files import select_modalities

MAX_NAMED = 20  # names in a message


@dataclass(frozen=True)
class SplitScans:
    source: Path
    layout: Layout
    split: Split
    subjects: tuple[Subject, ...]  # of patients of the split
    absent: tuple[str, ...]  # patients of the split without a scan in the folder
    left_out: dict[str, int]  # number of scans by split, other than this one; "not in the cohort": of other patients

    def targets(self, modalities: InputModalities | tuple[str, ...]) -> list[Target]:
        """Scans with a mask, or with a problem that is reported when they are segmented."""
        masked = [subject for subject in self.subjects if subject.masks or subject.problem]
        selected = select_modalities(masked, modalities, remedy="remove its other files")
        return check_names([Target(subject, bids=self.layout in BIDS_LAYOUTS) for subject in selected])

    def usable(self, modalities: InputModalities | tuple[str, ...]) -> int:
        """Number of scans with a mask, all needed modalities and no problem."""
        return sum(
            bool(subject.masks) and subject.problem is None for subject in select_modalities(self.subjects, modalities)
        )

    @property
    def without_mask(self) -> list[str]:
        return [subject.name for subject in self.subjects if not subject.masks and not subject.problem]

    def notes(self, folder: object) -> list[str]:
        """What was not scored, and why. `folder` is how the texts name the source."""
        notes = []
        if self.absent:
            count = len(self.absent)
            names = ", ".join(self.absent[:MAX_NAMED]) + (", ..." if count > MAX_NAMED else "")
            notes.append(f"skipped: {count} of the {self.split} patients, not in {folder}: {names}")
        if self.left_out:
            counts = ", ".join(f"{count} {where}" for where, count in self.left_out.items())
            notes.append(f"left out: scans in {folder} that are not of the {self.split} split ({counts})")
        return notes


def find_split_scans(
    cohort: Cohort, source: Path, modalities: InputModalities | tuple[str, ...], split: Split
) -> SplitScans:
    """In the layout that gives the most usable scans of the split; of equals, first the cohort's own."""
    own = parse(Layout, cohort.manifest.kind)
    layouts, names = (own, *(layout for layout in Layout if layout is not own)), as_inputs(modalities).names
    by_layout = [_assign(cohort, find_subjects(layout, source, names), source, layout, split) for layout in layouts]
    best = max(by_layout, key=lambda scans: (scans.usable(modalities), len(scans.subjects) > 0))  # of equals, the first
    if not best.subjects:
        raise CohortError(_nothing_found(best, cohort))
    return best


def _assign(cohort: Cohort, subjects: list[Subject], source: Path, layout: Layout, split: Split) -> SplitScans:
    """Each subject to the split of its patient."""
    split_of = dict(zip(cohort.patients.tolist(), cohort.splits.tolist(), strict=True))
    places = [(subject, split_of.get(subject.patient, "not in the cohort")) for subject in subjects]
    chosen = tuple(subject for subject, place in places if place == split)
    present = {subject.patient for subject in chosen}
    absent = sorted(patient for patient, place in split_of.items() if place == split and patient not in present)
    left_out = Counter(place for _, place in places if place != split)
    return SplitScans(source, layout, split, chosen, tuple(absent), dict(sorted(left_out.items())))


def _nothing_found(scans: SplitScans, cohort: Cohort) -> str:
    if not scans.absent:
        return f"{cohort.path}: its {scans.split} split is empty; choose another with --split"
    counts = ", ".join(f"{count} {place}" for place, count in scans.left_out.items()) or "no scan at all"
    return (
        f"{scans.source}: no scan of the {scans.split} split of {cohort.path} (found: {counts}); "
        f"patients are matched by name, e.g. {scans.absent[0]}"
    )
