"""Any folder of NIfTI files, for the real use: image-level labels in a CSV file, and masks only if there are some.

patient7_flair.nii.gz and patient7_t2.nii.gz, or patient7/flair.nii.gz, or, with one modality, just patient7.nii.gz;
a mask is called patient7_seg, _mask, _lesion or _roi.
"""

from collections.abc import Iterator
from pathlib import Path

from anofpdm.cohorts.subjects import MASK, Found, Source, Subject, gather, nifti_files, stem

WORDS = {
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
MASK_WORDS = dict.fromkeys(("seg", "mask", "lesion", "roi"), MASK)
UNNAMED = "image"


def find_subjects(source: Source, modalities: tuple[str, ...] = ()) -> list[Subject]:
    """`modalities` adds words of the user's own, for files that end in them."""
    return gather(_files(source, WORDS | MASK_WORDS | {word.lower(): word for word in modalities}))


def _files(source: Source, words: dict[str, str]) -> Iterator[Found]:
    for path in nifti_files(source):
        name, modality = _named(path, words)
        yield Found(name, name, modality, path)


def _folder_name(path: Path) -> str:
    """Of the folder that a file lies in; relative paths do not always say it."""
    name = path.parent.name
    return name if name not in ("", "..") else path.parent.resolve().name or "scan"


def _named(path: Path, words: dict[str, str]) -> tuple[str, str]:
    whole = stem(path.name)
    if whole.lower() in words:
        return _folder_name(path), words[whole.lower()]
    for mark in "_-":
        name, _, word = whole.rpartition(mark)
        if name and word.lower() in words:
            return name, words[word.lower()]
    return whole, UNNAMED
