"""BraTS as distributed: BraTS2021_00000_flair.nii.gz, or later BraTS-GLI-00000-000-t2f.nii.gz, at any depth."""

import re
from collections.abc import Iterator

from anofpdm.cohorts.subjects import MASK, Source, SourceFile, Subject, group_files, nifti_files, stem

MODALITIES = ("flair", "t1", "t1ce", "t2")
ROLES = {"seg": MASK, **{name: name for name in MODALITIES}}  # BraTS 2021 and before
ROLES |= {"t2f": "flair", "t1n": "t1", "t1c": "t1ce", "t2w": "t2"}  # BraTS 2023 and later
NAME = re.compile(r"(?P<subject>.+)[-_](?P<role>[a-z0-9]+)", re.IGNORECASE | re.DOTALL)
VISIT = re.compile(r"(?P<patient>BraTS-[A-Za-z]+-\d+)-\d{3}")  # the last number is the patient's visit


def find_subjects(source: Source) -> list[Subject]:
    return group_files(_files(source))


def _files(source: Source) -> Iterator[SourceFile]:
    for path in nifti_files(source):
        match = NAME.fullmatch(stem(path.name))
        if match and (role := ROLES.get(match["role"].lower())):
            visit = VISIT.fullmatch(match["subject"])
            yield SourceFile(match["subject"], visit["patient"] if visit else match["subject"], role, path)
