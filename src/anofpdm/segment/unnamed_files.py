"""NIfTI files of one study, some of whose names do not give their contrast: assigned to modalities by their images."""

from collections.abc import Sequence
from pathlib import Path

from anofpdm.cohorts.layouts import folder
from anofpdm.cohorts.subjects import Subject, is_nifti_name, normalise_name
from anofpdm.errors import CohortError, ConfigError, ScanError
from anofpdm.raw.unnamed_series import MOST_SERIES, assign_volumes
from anofpdm.scans import read_volume
from anofpdm.scans.modalities import InputModalities


def subject_by_images(
    files: Sequence[Path], modalities: InputModalities, remedy: str
) -> tuple[Subject, dict[str, str], dict[str, bytes]] | None:
    """The scan, the names of files that were chosen by their images, and the brains in these, packed. None where the
    files cannot be one study.

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
    subject = Subject(name, name, {modality: images[modality] for modality in modalities.select(images)})
    return subject, assigned, brains


def _split(files: Sequence[Path], modalities: tuple[str, ...]) -> tuple[dict[str, Path], list[Path]]:
    """Files by the modality in their names, and those without; none where they are not of one study."""
    named: dict[str, Path] = {}
    unnamed: dict[str, Path] = {}
    for path in files:
        (subject,) = folder.find_subjects([path], modalities)
        if is_nifti_name(path.name) and not subject.masks:
            role = next(iter(subject.images))
            group, key = (unnamed, path.name) if role == folder.UNNAMED else (named, role)
            if key in group:
                return {}, []
            group[key] = path
    one_folder = len({path.parent for path in files}) == 1
    return (named, list(unnamed.values())) if one_folder else ({}, [])
