"""NIfTI files of one study, some of whose names do not give their contrast: assigned to modalities by their images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anofpdm.cohorts.layouts import folder
from anofpdm.cohorts.subjects import MASK, Subject, normalise_name, stem
from anofpdm.errors import CohortError, ConfigError, ScanError
from anofpdm.raw.unnamed_series import MOST_SERIES, assign_volumes
from anofpdm.scans import read_volume
from anofpdm.scans.modalities import InputModalities


@dataclass(frozen=True)
class SubjectByImages:
    subject: Subject
    notes: tuple[str, ...]  # a line for each file that was chosen by its image
    brains: dict[str, bytes]  # of the files whose images were compared


def subject_by_images(files: Sequence[Path], modalities: InputModalities, remedy: str) -> SubjectByImages | None:
    """None where the files cannot be one study.

    CohortError where the images do not give the modalities.
    """
    named, unnamed = _split(files, modalities.names)
    missing = modalities.without(named)
    if len(modalities.names) < 2 or not 0 < len(missing.needed) <= len(unnamed) <= MOST_SERIES:
        return None
    where = unnamed[0].parent
    try:
        volumes = {path.name: read_volume(path) for path in unnamed}
        assigned, brains = assign_volumes(volumes, missing, tuple(named), remedy)
    except ConfigError:  # deepbet is not installed: the names alone decide
        return None
    except ScanError as problem:
        raise CohortError(f"{where}: {problem}") from None
    images = named | {name: where / file for name, file in assigned.items()}
    name = normalise_name(where.resolve().name) or "scan"
    lines = tuple(f"{file} is used as {modality}, by its image" for modality, file in assigned.items())
    subject = Subject(name, name, {modality: images[modality] for modality in modalities.select(images)})
    return SubjectByImages(subject, lines, brains)


def _split(files: Sequence[Path], modalities: tuple[str, ...]) -> tuple[dict[str, Path], list[Path]]:
    """Files by the modality in their names, and those without; none where they are not of one study."""
    parts = [(path, _role(path, modalities)) for path in files if stem(path.name) != path.name]
    named = [(role, path) for path, role in parts if role not in (folder.UNNAMED, MASK)]
    unnamed = [path for path, role in parts if role == folder.UNNAMED]
    twice = len({role for role, _ in named}) < len(named) or len({path.name for path in unnamed}) < len(unnamed)
    return ({}, []) if twice or len({path.parent for path in files}) != 1 else (dict(named), unnamed)


def _role(path: Path, modalities: tuple[str, ...]) -> str:
    (subject,) = folder.find_subjects([path], modalities)
    return MASK if subject.masks else next(iter(subject.images))
