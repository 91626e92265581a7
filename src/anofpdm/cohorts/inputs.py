"""What a user points at to have it segmented: files, folders in any layout we know, or a prepared cohort."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anofpdm.cohorts import atlas, bids, brats, folder
from anofpdm.cohorts.store import open_cohort
from anofpdm.cohorts.subjects import Source, Subject, nifti_files, stem, with_modalities
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import CohortError

Finder = Callable[[Source], list[Subject]]


@dataclass(frozen=True)
class Target:
    """A scan to segment."""

    subject: Subject  # with just the modalities that are needed, in their order
    bids: bool  # whether its results are to be named as BIDS names them


def find_targets(words: Sequence[str], modalities: tuple[str, ...], split: str | None = None) -> list[Target]:
    """Each word is a folder, a NIfTI file, or modality=file. Files that belong together are one scan."""
    targets: list[Target] = []
    named = dict(_named(word) for word in words if _is_named(word))
    if named:
        targets.append(_explicit(named, modalities))
    plain = [Path(word) for word in words if not _is_named(word)]
    for path in plain:
        if not path.exists():
            raise CohortError(f"{path}: no such file or folder; check the path")
    files = [path for path in plain if path.is_file()]
    for path in files:
        if stem(path.name) == path.name:
            raise CohortError(f"{path}: not a NIfTI file by its name (.nii, .nii.gz); convert it, e.g. with dcm2niix")
    if files:
        targets += _best_layout(files, modalities, ", ".join(map(str, files)))
    for place in (path for path in plain if path.is_dir()):
        found = _prepared(place, modalities, split) if (place / MANIFEST).is_file() else None
        targets += found if found is not None else _best_layout(place, modalities, str(place))
    return _unique(targets)


def _best_layout(source: Source, modalities: tuple[str, ...], where: str) -> list[Target]:
    """By the layout in which most scans have all that the model needs."""
    layouts: dict[str, Finder] = {
        "bids": bids.find_subjects,  # first, since BraTS would take these names too
        "brats21": brats.find_subjects,
        "nifti": lambda files: folder.find_subjects(files, modalities),
    }
    best: tuple[int, str, list[Subject]] = (-1, "", [])
    for name, find in layouts.items():
        subjects = with_modalities([_named_by_the_model(one, modalities) for one in find(source)], modalities)
        usable = sum(one.problem is None for one in subjects)
        if subjects and usable > best[0]:
            best = (usable, name, subjects)
    usable, name, subjects = best
    if not subjects:
        count = sum(1 for _ in nifti_files(source))
        raise CohortError(f"{where}: no scan found in it ({count} NIfTI files); {', '.join(modalities)} are needed")
    if not usable:
        raise CohortError(f"{where}: {subjects[0].name}: {subjects[0].problem}")
    return [Target(one, name == "bids") for one in subjects]


def _named_by_the_model(subject: Subject, modalities: tuple[str, ...]) -> Subject:
    """A file without a modality in its name is the one that a model of one modality takes."""
    if len(modalities) != 1 or list(subject.images) != [folder.UNNAMED]:
        return subject
    return replace(subject, images={modalities[0]: subject.images[folder.UNNAMED]})


def _explicit(files: dict[str, Path], modalities: tuple[str, ...]) -> Target:
    unknown = [name for name in files if name not in modalities]
    if unknown:
        raise CohortError(f"{unknown[0]}={files[unknown[0]]}: the model knows {', '.join(modalities)}")
    for path in files.values():
        if not path.is_file():
            raise CohortError(f"{path}: no such file; check the path")
    first = next(iter(files.values()))
    name = folder.find_subjects([first])[0].name or "scan"
    (subject,) = with_modalities([Subject(name, name, files)], modalities)
    if subject.problem:
        raise CohortError(f"{name}: {subject.problem}")
    return Target(subject, bids=False)


def _prepared(place: Path, modalities: tuple[str, ...], split: str | None) -> list[Target]:
    """The scans that a prepared cohort was made from, where they still are."""
    cohort = open_cohort(place)
    source = Path(cohort.manifest["source"])
    if not source.is_dir():
        raise CohortError(f"{place}: the scans that it was prepared from are gone ({source}); give their folder")
    finders: dict[str, Finder] = {
        "brats21": brats.find_subjects,
        "atlas2": lambda files: atlas.find_subjects(Path(str(files))),
        "bids": bids.find_subjects,
        "nifti": lambda files: folder.find_subjects(files, modalities),
    }
    kind = cohort.manifest["kind"]
    wanted = set((cohort.scans if split is None else cohort.scans[cohort.rows(split)]).tolist())
    subjects = [one for one in finders[kind](source) if one.name in wanted]
    subjects = with_modalities([_named_by_the_model(one, modalities) for one in subjects], modalities)
    return [Target(one, kind in ("bids", "atlas2")) for one in subjects]


def _is_named(word: str) -> bool:
    return "=" in word and not Path(word).exists()


def _named(word: str) -> tuple[str, Path]:
    name, _, path = word.partition("=")
    return name.lower(), Path(path)


def _unique(targets: list[Target]) -> list[Target]:
    """Two scans of one name would overwrite each other's results."""
    seen: dict[str, Target] = {}
    for target in targets:
        name = target.subject.name
        if name in seen and seen[name].subject.images != target.subject.images:
            raise CohortError(f"two scans are called {name}; segment them into different folders")
        seen[name] = target
    return list(seen.values())
