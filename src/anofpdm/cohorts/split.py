"""Splits into training, validation (calibration) and test sets, by patient."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError
from anofpdm.options import Split

TRAIN_SHARE, VAL_SHARE = 0.75, 0.05  # the rest is the test split


def draw_split(patients: Sequence[str], seed: int) -> dict[str, Split]:
    """75/5/20, rounded as in the paper (655 patients: 492, 33, 130); from 3 patients on, no split is empty."""
    count = len(patients)
    n_train = math.ceil(TRAIN_SHARE * count)
    if count >= 3:
        n_train = min(n_train, count - 2)
    n_val = min(math.ceil(VAL_SHARE * count), count - n_train)
    shuffled = np.random.default_rng(seed).permutation(sorted(patients))
    names = [Split.TRAIN] * n_train + [Split.VAL] * n_val + [Split.TEST] * (count - n_train - n_val)
    return {str(patient): split for patient, split in zip(shuffled, names, strict=True)}


def split_subjects(subjects: Sequence[Subject], labelled: set[str], seed: int) -> dict[str, Split]:
    """Patient to split. Patients without labels or masks go to the training split."""
    patients = {subject.patient for subject in subjects}
    known = {subject.patient for subject in subjects if subject.name in labelled}
    return {**dict.fromkeys(patients - known, Split.TRAIN), **draw_split(sorted(known), seed)}


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
