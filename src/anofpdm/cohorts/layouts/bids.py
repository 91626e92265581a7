"""Any BIDS folder: sub-01/ses-1/anat/sub-01_ses-1_FLAIR.nii.gz; lesion masks beside the images or in derivatives/."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from anofpdm.cohorts.subjects import MASK, Found, Source, Subject, gather, nifti_files, stem

SUFFIXES = {"FLAIR": "flair", "T1w": "t1", "T2w": "t2", "PDw": "pd", "T2starw": "t2star"}
CONTRAST_ENHANCED = {"t1": "t1ce"}
MASK_SUFFIXES = ("mask", "roi")
OURS = "anofpdm"  # desc of what we write ourselves
NOT_RAW = {"derivatives", "sourcedata", "code"}

Entities = Mapping[str, str]
REMEDY = "keep one, or choose with --entity, for example --entity run=1"


def find_subjects(source: Source, entities: Entities | None = None, *, remedy: str = REMEDY) -> list[Subject]:
    """`entities` picks among several files of one kind: {"acq": "iso"}, or {"acq": ""} for the one without."""
    candidates: dict[tuple[str, str], list[tuple[Found, Entities]]] = {}
    for found, said in _files(source):
        candidates.setdefault((found.name, found.role), []).append((found, said))
    chosen = [found for several in candidates.values() for found in _pick(several, entities or {})]
    return gather(chosen, remedy=remedy)


def parse(name: str) -> tuple[dict[str, str], str]:
    """'sub-01_ce-gad_T1w' -> ({'sub': '01', 'ce': 'gad'}, 'T1w')."""
    *pairs, suffix = name.split("_")
    return {key: value for key, _, value in (pair.partition("-") for pair in pairs)}, suffix


def _files(source: Source) -> Iterator[tuple[Found, Entities]]:
    for path in nifti_files(source):
        entities, suffix = parse(stem(path.name))
        role = _role(entities, suffix, path.relative_to(source) if isinstance(source, Path) else path)
        if role is not None and "sub" in entities:
            patient = f"sub-{entities['sub']}"
            name = f"{patient}_ses-{entities['ses']}" if "ses" in entities else patient
            yield Found(name, patient, role, path), entities


def _pick(candidates: list[tuple[Found, Entities]], wanted: Entities) -> list[Found]:
    """Those that say what is wanted; where none says it, those that say nothing against it."""
    exact = [found for found, said in candidates if all(said.get(key, "") == value for key, value in wanted.items())]
    silent = [
        found for found, said in candidates if all(said.get(key, value) == value for key, value in wanted.items())
    ]
    return exact or silent


def _role(entities: Entities, suffix: str, place: Path) -> str | None:
    if entities.get("desc") == OURS:
        return None
    if suffix in MASK_SUFFIXES:
        says = entities.get("label", "") + entities.get("desc", "")
        return MASK if entities.get("label") == "L" or "lesion" in says.lower() else None
    if suffix not in SUFFIXES or NOT_RAW & set(place.parts):
        return None
    modality = SUFFIXES[suffix]
    return CONTRAST_ENHANCED.get(modality, modality) if "ce" in entities else modality
