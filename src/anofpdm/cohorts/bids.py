"""Any BIDS folder: sub-01/ses-1/anat/sub-01_ses-1_FLAIR.nii.gz; lesion masks beside the images or in derivatives/."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from anofpdm.cohorts.subjects import MASK, Found, Subject, gather, nifti_files, stem

SUFFIXES = {"FLAIR": "flair", "T1w": "t1", "T2w": "t2", "PDw": "pd", "T2starw": "t2star", "dwi": "dwi", "adc": "adc"}
CONTRAST_ENHANCED = {"t1": "t1ce"}
MASK_SUFFIXES = ("mask", "roi")
NOT_RAW = {"derivatives", "sourcedata", "code"}


def find_subjects(source: Path, entities: Mapping[str, str] | None = None) -> list[Subject]:
    """`entities` picks among several files of one kind: {"acq": "iso"} passes over files that say another acq."""
    return gather(_files(source, entities or {}))


def parse(name: str) -> tuple[dict[str, str], str]:
    """'sub-01_ce-gad_T1w' -> ({'sub': '01', 'ce': 'gad'}, 'T1w')."""
    *pairs, suffix = name.split("_")
    return {key: value for key, _, value in (pair.partition("-") for pair in pairs)}, suffix


def _files(source: Path, wanted: Mapping[str, str]) -> Iterator[Found]:
    for path in nifti_files(source):
        entities, suffix = parse(stem(path.name))
        role = _role(entities, suffix, path.relative_to(source))
        if role is None or "sub" not in entities:
            continue
        if any(entities.get(key, value) != value for key, value in wanted.items()):
            continue
        patient = f"sub-{entities['sub']}"
        yield Found(f"{patient}_ses-{entities['ses']}" if "ses" in entities else patient, patient, role, path)


def _role(entities: dict[str, str], suffix: str, place: Path) -> str | None:
    if suffix in MASK_SUFFIXES:
        says = entities.get("label", "") + entities.get("desc", "")
        return MASK if entities.get("label") == "L" or "lesion" in says.lower() else None
    if suffix not in SUFFIXES or NOT_RAW & set(place.parts):
        return None
    modality = SUFFIXES[suffix]
    return CONTRAST_ENHANCED.get(modality, modality) if "ce" in entities else modality
