"""Plan a preparation: find scans, choose modalities, check labels and splits, before any scan is read."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anofpdm.choices import Layout, Raw, Split, Template, parse
from anofpdm.cohorts.csv_tables import GivenLabels, read_labels, read_split
from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.cohorts.subjects import Subject, all_modalities, require_one_mask, with_modalities
from anofpdm.cohorts.writer import Preparation, Settings
from anofpdm.errors import CohortError
from anofpdm.scans.slices import BRIGHT_PERCENTILE, LEAST_FOREGROUND

PREPARATION_VERSION = 2  # incremented whenever the same scan would give other slices
SIZES = (16, 512)
MEASURED = 24  # scans whose position in template space is measured, at some seconds each
TRAIN_SHARE, VAL_SHARE = 0.75, 0.05  # of the patients; the rest is the test split
FILE_NAMES = {
    Layout.BRATS21: "<subject>_flair.nii.gz, _t1, _t1ce, _t2, _seg (or -t2f, -t1n, -t1c, -t2w)",
    Layout.ATLAS2: "sub-<id>_..._T1w.nii.gz and sub-<id>_..._label-L_desc-T1lesion_mask.nii.gz",
    Layout.BIDS: "sub-<id>[_ses-<id>]_T1w.nii.gz, _T2w, _FLAIR",
    Layout.NIFTI: "<subject>_<modality>.nii.gz or <subject>.nii.gz",
}


@dataclass(frozen=True)
class Plan:
    """Everything that determines the contents of a prepared cohort."""

    layout: Layout
    source: Path
    subjects: list[Subject]
    modalities: tuple[str, ...]
    split: dict[str, Split]  # patient to split
    split_from: str  # "seed 0", or "given" for a split file
    size: int = 128
    labels: GivenLabels | None = None  # None: labels are derived from the masks
    raw: RawOptions = field(default_factory=RawOptions)
    keep_isolated: bool = False  # labels unlike those of both adjacent slices
    fill_labels_mm: float = 0.0  # most between two slices with the same label, for those between them to get it
    unknown_spacing: bool = False  # the headers have no true distance between slices

    @property
    def preparation(self) -> Preparation:
        raw = self.raw
        return Preparation(
            version=PREPARATION_VERSION,
            modalities=self.modalities,
            size=self.size,
            bright_percentile=BRIGHT_PERCENTILE,
            least_foreground=LEAST_FOREGROUND,
            raw=None if raw.raw is Raw.AUTO else raw.raw,
            keep_skull=raw.keep_skull or None,
            template=None if raw.template is Template.NONE else raw.template,
        )

    @property
    def measured(self) -> frozenset[str]:
        """Training scans whose position in template space is measured."""
        if self.raw.template is Template.NONE:
            return frozenset()
        names = [
            subject.name
            for subject in self.subjects
            if not subject.problem and self.split[subject.patient] == Split.TRAIN
        ]
        chosen = np.linspace(0, len(names) - 1, min(len(names), MEASURED)).round().astype(int)
        return frozenset(names[number] for number in chosen)

    @property
    def settings(self) -> Settings:
        masks = any(subject.masks for subject in self.subjects)
        return Settings(**vars(self.preparation), kind=str(self.layout), masks=masks, split=self.split_from)


def plan_cohort(
    layout: Layout | str,
    source: Path,
    *,
    size: int = 128,
    modalities: tuple[str, ...] = (),
    labels: Path | None = None,
    split: Path | None = None,
    seed: int = 0,
    entities: Mapping[str, str] | None = None,
) -> Plan:
    """`labels` and `split` are CSV files; without a split file, patients are split at random with `seed`."""
    layout = parse(Layout, layout)
    source = source.absolute()
    modalities = tuple(name.lower() for name in modalities)
    if len(set(modalities)) < len(modalities):
        raise CohortError(f"--modalities {','.join(modalities)}: duplicate modality; name each once")
    if entities and layout is not Layout.BIDS:
        raise CohortError(f"--entity chooses among BIDS files and does not apply to {layout}; leave it out")
    if not SIZES[0] <= size <= SIZES[1] or size % 8:
        raise CohortError(f"--size {size}: choose a multiple of 8 from {SIZES[0]} to {SIZES[1]}")
    subjects = find_subjects(layout, source, modalities, entities)
    if not subjects:
        raise CohortError(
            f"{source}: no scan in the {layout} layout found; expected files such as {FILE_NAMES[layout]}"
        )
    chosen = modalities or all_modalities(subjects, brats.MODALITIES)
    subjects = with_modalities(subjects, chosen)
    given = None
    if table := labels_file(layout, source, labels):
        given = read_labels(table)
        given.check_known({name for subject in subjects for name in (subject.name, subject.patient)})
    if all(subject.problem for subject in subjects):
        raise CohortError(f"{source}: no scan can be used ({subjects[0].name}: {subjects[0].problem})")
    split_from = f"seed {seed}" if split is None else "given"
    return Plan(layout, source, subjects, chosen, _split(subjects, given, split, seed), split_from, size, given)


def find_subjects(
    layout: Layout, source: Path, modalities: tuple[str, ...] = (), entities: Mapping[str, str] | None = None
) -> list[Subject]:
    """Scans with their masks; what makes a scan or its mask unusable is recorded as the subject's problem."""
    match layout:
        case Layout.BRATS21:
            return require_one_mask(brats.find_subjects(source))
        case Layout.ATLAS2:
            return bids.find_atlas_subjects(source)
        case Layout.BIDS:
            return require_one_mask(bids.find_subjects(source, entities), remedy=bids.REMEDY)
        case Layout.NIFTI:
            return require_one_mask(folder.find_subjects(source, modalities))


def labels_file(layout: Layout, source: Path, labels: Path | None) -> Path | None:
    """The file that labels are read from; None: they are derived from masks."""
    return source / "labels.csv" if labels is None and layout is Layout.NIFTI else labels


def _split(subjects: list[Subject], given: GivenLabels | None, path: Path | None, seed: int) -> dict[str, Split]:
    """Patient to split. Patients without labels or masks go to the training split."""
    if path is not None:
        return apply_split(subjects, read_split(path), path)
    known = {
        subject.patient
        for subject in subjects
        if (subject.masks if given is None else given.rows_of(subject.name, subject.patient))
    }
    others = {subject.patient for subject in subjects} - known
    return {**dict.fromkeys(others, Split.TRAIN), **split_at_random(sorted(known), seed)}


def split_at_random(patients: Sequence[str], seed: int) -> dict[str, Split]:
    """75/5/20, rounded as in the paper (655 patients: 492, 33, 130); from 3 patients on, no split is empty."""
    count = len(patients)
    n_train = math.ceil(TRAIN_SHARE * count)
    if count >= 3:
        n_train = min(n_train, count - 2)
    n_val = min(math.ceil(VAL_SHARE * count), count - n_train)
    shuffled = np.random.default_rng(seed).permutation(sorted(patients))
    names = [Split.TRAIN] * n_train + [Split.VAL] * n_val + [Split.TEST] * (count - n_train - n_val)
    return {str(patient): split for patient, split in zip(shuffled, names, strict=True)}


def apply_split(subjects: Sequence[Subject], given: Mapping[str, Split], path: Path) -> dict[str, Split]:
    """Patient to split, from a file of patients or of scans."""
    splits: dict[str, Split] = {}
    missing = []
    for subject in subjects:
        split = given.get(subject.name) or given.get(subject.patient)
        if split is None:
            missing.append(subject.name)
        elif splits.setdefault(subject.patient, split) != split:
            raise CohortError(
                f"{path} has patient {subject.patient} in {splits[subject.patient]} and in {split}; choose one split"
            )
    if missing:
        raise CohortError(
            f"{path}: no row for {len(missing)} scans ({', '.join(missing[:3])}, ...); add a row for each"
        )
    return splits
