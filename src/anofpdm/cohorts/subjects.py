"""Scans of a source folder: one `Subject` per scan, for all layouts."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from anofpdm.errors import CohortError
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.util.files import describe_irregular, walk_files

MASK = "mask"


@dataclass(frozen=True)
class Subject:
    name: str  # name of the scan; unique in a cohort
    patient: str  # all scans of a patient are in one split
    images: dict[str, Path] = field(default_factory=dict)  # modality to file
    masks: tuple[Path, ...] = ()  # lesions; several only where a layout joins them
    problem: str | None = None  # why it cannot be used, if known before any file is opened


class SourceFile(NamedTuple):
    """A file and its role: a modality's name, or MASK."""

    name: str
    patient: str
    role: str
    path: Path


Source = Path | Sequence[Path]  # a folder, or a list of files


def nifti_files(source: Source) -> Iterator[Path]:
    """All NIfTI files below a folder, sorted; hidden files and symlink loops are skipped."""
    if not isinstance(source, Path):
        yield from source
        return
    if not source.is_dir():
        raise CohortError(f"{source}: {'not a folder' if source.exists() else 'no such folder'}; check the path")
    for path in walk_files(source, lambda name: name.startswith("."), is_nifti_name):
        # A folder with the name of a file may hold the file. Others, pipes and devices are reported by `group_files`.
        if is_nifti_name(path.name) and not (path.is_dir() and any(nifti_files(path))):
            yield path


def is_nifti_name(name: str) -> bool:
    return stem(name) != name


def stem(name: str) -> str:
    """`name` without .nii or .nii.gz (case-insensitive); unchanged without such an extension."""
    lower = name.lower()
    return next((name[: -len(end)] for end in (".nii.gz", ".nii") if lower.endswith(end)), name)


def group_files(files: Iterable[SourceFile], *, remedy: str = "keep one") -> list[Subject]:
    """One subject per name, sorted; two images of one modality are recorded as the subject's problem.

    Several masks are kept: segmentation does not need them. `require_one_mask` refuses them.
    """
    parts: dict[str, dict[str, list[Path]]] = {}
    patients: dict[str, str] = {}
    for name, patient, role, path in files:
        name = normalise_name(name)
        parts.setdefault(name, {}).setdefault(role, []).append(path)
        patients[name] = normalise_name(patient)
    subjects = []
    for name in sorted(parts):
        masks = tuple(parts[name].get(MASK, ()))
        images = {role: paths[0] for role, paths in parts[name].items() if role != MASK}
        subjects.append(Subject(name, patients[name], images, masks, _problem(parts[name], remedy)))
    return subjects


def require_one_mask(subjects: list[Subject], *, same_folder: bool = False, remedy: str = "keep one") -> list[Subject]:
    """Record several masks as the subject's problem; `same_folder`: only if they are in different folders."""
    checked = []
    for subject in subjects:
        masks = subject.masks
        joined = same_folder and len({path.parent for path in masks}) == 1
        if len(masks) > 1 and not joined and subject.problem is None:
            subject = replace(subject, problem=_two_files(MASK, masks, remedy))
        checked.append(subject)
    return checked


def normalise_name(name: str) -> str:
    """Unicode in normal form C, with undecodable bytes escaped."""
    return unicodedata.normalize("NFC", name.encode("utf-8", "backslashreplace").decode())


def with_modalities(
    subjects: list[Subject],
    modalities: InputModalities | tuple[str, ...],
    *,
    remedy: str = "choose modalities with --modalities",
) -> list[Subject]:
    """The same subjects with these modalities only, in this order; a missing needed one is recorded as a problem."""
    wanted, selected = as_inputs(modalities), []
    for subject in subjects:
        missing, problem = " or ".join(wanted.missing_needed(subject.images)), subject.problem
        if missing and problem is None:
            has = ", ".join(subject.images) or "none"
            problem = f"no {missing} image (found: {has}); add it, or {remedy}{wanted.explain()}"
        images = {modality: subject.images[modality] for modality in wanted.select(subject.images)}
        selected.append(replace(subject, images=images, problem=problem))
    return selected


def all_modalities(subjects: list[Subject], order: tuple[str, ...]) -> tuple[str, ...]:
    """All modalities of any subject: those of `order` first, then sorted by name."""
    present = {modality for subject in subjects for modality in subject.images}
    return (*(m for m in order if m in present), *sorted(present - set(order)))


def _problem(parts: dict[str, list[Path]], remedy: str) -> str | None:
    for role, paths in parts.items():
        if irregular := [f"{path} is {what}" for path in paths if (what := describe_irregular(path))]:
            return f"{irregular[0]}, not a file; remove it"
        if len(paths) > 1 and role != MASK:
            return _two_files(role, paths, remedy)
        if normalise_name(str(paths[0])) != unicodedata.normalize("NFC", str(paths[0])):
            return f"the name of its {role} is not valid UTF-8; rename the file or folder"
    return None


def _two_files(role: str, paths: Sequence[Path], remedy: str) -> str:
    return f"two files for its {role}: {paths[0]} and {paths[1]}; {remedy}"
