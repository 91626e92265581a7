"""Any folder of NIfTI files, with image-level labels in a CSV file and optional masks.

patient7_flair.nii.gz and patient7_t2.nii.gz, or patient7/flair.nii.gz, or, with one modality, just patient7.nii.gz;
a mask is called patient7_seg, _mask, _lesion or _roi.
"""

from collections.abc import Iterator
from pathlib import Path

from anofpdm.cohorts.subjects import MASK, Source, SourceFile, Subject, group_files, nifti_files, stem

MODALITY_NAMES = {
    "flair": "flair",
    "t2f": "flair",
    "t2flair": "flair",
    "t1": "t1",
    "t1w": "t1",
    "t1n": "t1",
    "t2": "t2",
    "t2w": "t2",
    "t1ce": "t1ce",
    "t1c": "t1ce",
    "t1gd": "t1ce",
    "pd": "pd",
    "dwi": "dwi",
    "adc": "adc",
    "swi": "swi",
    "ct": "ct",
}
MASK_NAMES = dict.fromkeys(("seg", "mask", "lesion", "roi"), MASK)
UNNAMED = "image"


def find_subjects(source: Source, modalities: tuple[str, ...] = ()) -> list[Subject]:
    """`modalities` adds further names that files may end in."""
    return group_files(_files(source, MODALITY_NAMES | MASK_NAMES | {name.lower(): name for name in modalities}))


def _files(source: Source, names: dict[str, str]) -> Iterator[SourceFile]:
    for path in nifti_files(source):
        name, modality = _parse_name(path, names)
        yield SourceFile(name, name, modality, path)


def _folder_name(path: Path) -> str:
    """Name of the parent folder, also for relative paths."""
    name = path.parent.name
    return name if name not in ("", "..") else path.parent.resolve().name or "scan"


def _parse_name(path: Path, names: dict[str, str]) -> tuple[str, str]:
    """Subject and modality."""
    whole = stem(path.name)
    if whole.lower() in names:
        return _folder_name(path), names[whole.lower()]
    for separator in "_-":
        subject, _, modality = whole.rpartition(separator)
        if subject and modality.lower() in names:
            return subject, names[modality.lower()]
    return whole, UNNAMED
