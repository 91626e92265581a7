"""Who is for training, who for calibration, who for the test: by patient, so that no head is in two of them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError

SPLITS = ("train", "val", "test")
TRAIN_SHARE, VAL_SHARE = 0.75, 0.05  # the rest is for the test


def draw_split(patients: Sequence[str], seed: int) -> dict[str, str]:
    """75/5/20, rounded as in the paper (655 patients: 492, 33, 130); val and test never empty from 3 patients on."""
    count = len(patients)
    n_train = math.ceil(TRAIN_SHARE * count)
    if count >= 3:
        n_train = min(n_train, count - 2)
    n_val = min(math.ceil(VAL_SHARE * count), count - n_train)
    shuffled = np.random.default_rng(seed).permutation(sorted(patients))
    names = ["train"] * n_train + ["val"] * n_val + ["test"] * (count - n_train - n_val)
    return {str(patient): split for patient, split in zip(shuffled, names, strict=True)}


def split_subjects(subjects: Sequence[Subject], labelled: set[str], seed: int) -> dict[str, str]:
    """Patient to split. A patient without any label or mask can only train."""
    patients = {subject.patient for subject in subjects}
    known = {subject.patient for subject in subjects if subject.name in labelled}
    return {**dict.fromkeys(patients - known, "train"), **draw_split(sorted(known), seed)}


def given_split(subjects: Sequence[Subject], given: Mapping[str, str], path: Path) -> dict[str, str]:
    """Patient to split from a file that names patients, or their scans."""
    splits: dict[str, str] = {}
    missing = []
    for subject in subjects:
        split = given.get(subject.name) or given.get(subject.patient)
        if split is None:
            missing.append(subject.name)
        elif splits.setdefault(subject.patient, split) != split:
            raise CohortError(
                f"{path} puts scans of patient {subject.patient} into {splits[subject.patient]} and {split}; choose one"
            )
    if missing:
        raise CohortError(f"{path} leaves out {len(missing)} scans ({', '.join(missing[:3])}, ...); add a row for each")
    return splits
