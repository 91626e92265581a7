"""Any BIDS folder: sub-01/ses-1/anat/sub-01_ses-1_FLAIR.nii.gz; lesion masks next to the images or in derivatives/.

A mask without a session, or of an image without one, belongs to the image if the subject has no other session.

ATLAS v2.0 as distributed is a BIDS tree of T1 scans below site folders, a lesion mask next to each:

Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_space-MNI152NLin2009aSym_T1w.nii.gz
                                      sub-r001s001_ses-1_space-MNI152NLin2009aSym_label-L_desc-T1lesion_mask.nii.gz

Further masks in the same folder (desc-T1lesion-2) are further lesions of the scan; its mask is their union.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anofpdm.cohorts.subjects import (
    MASK,
    Source,
    SourceFile,
    Subject,
    group_files,
    nifti_files,
    require_one_mask,
    stem,
    with_modalities,
)

SUFFIXES = {"FLAIR": "flair", "T1w": "t1", "T2w": "t2", "PDw": "pd", "T2starw": "t2star"}
CONTRAST_ENHANCED = {"t1": "t1ce"}
MASK_SUFFIXES = ("mask", "roi")
OUR_DESC = "anofpdm"  # desc entity of our own results
NOT_RAW = {"derivatives", "sourcedata", "code"}

Entities = Mapping[str, str]
REMEDY = "keep one, or choose with --entity, for example --entity run=1"


def find_subjects(source: Source, entities: Entities | None = None, *, remedy: str = REMEDY) -> list[Subject]:
    """`entities` chooses among several files of one kind: {"acq": "iso"}, or {"acq": ""} for the one without."""
    candidates: dict[tuple[str, str], list[tuple[SourceFile, Entities]]] = {}
    for file, its_entities in _match_sessions(list(_files(source))):
        candidates.setdefault((file.name, file.role), []).append((file, its_entities))
    chosen = [file for group in candidates.values() for file in _pick(group, entities or {})]
    subjects = group_files(chosen, remedy=remedy)
    return [subject if subject.images else _without_image(subject, subjects) for subject in subjects]


def find_atlas_subjects(source: Path) -> list[Subject]:
    subjects = require_one_mask(find_subjects(source, remedy="keep one"), same_folder=True)
    return with_modalities(subjects, ("t1",), remedy="remove its other files")


def parse(name: str) -> tuple[dict[str, str], str]:
    """'sub-01_ce-gad_T1w' -> ({'sub': '01', 'ce': 'gad'}, 'T1w')."""
    *pairs, suffix = name.split("_")
    return {key: value for key, _, value in (pair.partition("-") for pair in pairs)}, suffix


def _files(source: Source) -> Iterator[tuple[SourceFile, Entities]]:
    for path in nifti_files(source):
        entities, suffix = parse(stem(path.name))
        role = _role(entities, suffix, path.relative_to(source) if isinstance(source, Path) else path)
        if role is not None and "sub" in entities:
            patient = f"sub-{entities['sub']}"
            name = f"{patient}_ses-{entities['ses']}" if "ses" in entities else patient
            yield SourceFile(name, patient, role, path), entities


def _match_sessions(files: Sequence[tuple[SourceFile, Entities]]) -> Iterator[tuple[SourceFile, Entities]]:
    """Where image and mask do not both name a session, and there is one image, the mask gets its name."""
    scans: dict[str, set[str]] = {}
    for file, _ in files:
        if file.role != MASK:
            scans.setdefault(file.patient, set()).add(file.name)
    for file, entities in files:
        names = scans.get(file.patient, set())
        if file.role == MASK and len(names) == 1 and file.patient in {file.name, *names}:
            file = file._replace(name=next(iter(names)))
        yield file, entities


def _without_image(subject: Subject, subjects: Sequence[Subject]) -> Subject:
    others = [other.name for other in subjects if other.patient == subject.patient and other.images]
    problem = (
        f"no image for its mask {subject.masks[0]} (scans with images: {' and '.join(others) or 'none'}); add the "
        "image, correct the session in the mask's name, or remove the mask"
    )
    return replace(subject, problem=subject.problem or problem)


def _pick(candidates: list[tuple[SourceFile, Entities]], wanted: Entities) -> list[SourceFile]:
    """Files with the wanted entities; if there are none, files without contradicting entities."""
    pairs = wanted.items()
    exact = [file for file, has in candidates if all(has.get(key, "") == value for key, value in pairs)]
    return exact or [file for file, has in candidates if all(has.get(key, value) == value for key, value in pairs)]


def _role(entities: Entities, suffix: str, path: Path) -> str | None:
    if entities.get("desc") == OUR_DESC:
        return None
    if suffix in MASK_SUFFIXES:
        description = entities.get("label", "") + entities.get("desc", "")
        return MASK if entities.get("label") == "L" or "lesion" in description.lower() else None
    if suffix not in SUFFIXES or NOT_RAW & set(path.parts):
        return None
    modality = SUFFIXES[suffix]
    return CONTRAST_ENHANCED.get(modality, modality) if "ce" in entities else modality
