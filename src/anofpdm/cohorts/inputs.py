"""What a user points at to have it segmented: files, folders in any layout we know, DICOM, or a prepared cohort."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.store import open_cohort
from anofpdm.cohorts.subjects import Source, Subject, nifti_files, readable, stem, with_modalities
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import AnoFPDMError, CohortError
from anofpdm.scans.dicom.source import holds_dicom, is_zip

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import Study  # brings pydicom, which few have

Finder = Callable[[Source], list[Subject]]
OUR_FILES = ("mask.nii.gz", "anomaly_map.nii.gz")  # as segmenting names them outside BIDS
MADE_OF_SCANS = ("_brain", "_mask", "_brainmask")  # ends of names of what is no scan beside the one it was made of
NO_NAMES = ("", ".", "..")  # would lead out of the folder for results


@dataclass(frozen=True)
class Target:
    """A scan to segment."""

    subject: Subject  # with just the modalities that are needed, in their order
    bids: bool  # whether its results are to be named as BIDS names them
    study: "Study | None" = None  # where it is DICOM; its images are then the folder or zip until it is opened

    @contextlib.contextmanager
    def open(self) -> Iterator[Subject]:
        """The subject with files to read. Those of DICOM are NIfTI files in a temporary folder, gone afterwards."""
        if self.study is None:
            yield self.subject
            return
        with tempfile.TemporaryDirectory(prefix="anofpdm-") as space:
            yield replace(self.subject, images=self.study.convert(Path(space)))


def find_targets(
    words: Sequence[str],
    modalities: tuple[str, ...],
    split: str | None = None,
    series: Mapping[str, str] | None = None,  # of DICOM: modality to number, UID or description
) -> list[Target]:
    """Each word is a folder, a NIfTI file, DICOM, or modality=file. Files that belong together are one scan."""
    targets: list[Target] = []
    named = [_named(word) for word in words if _is_named(word)]
    if named:
        targets.append(_explicit(named, modalities))
    plain = [Path(word) for word in words if not _is_named(word)]
    for path in plain:
        if not path.exists():
            raise CohortError(f"{path}: no such file or folder; check the path")
    studies = [path for path in plain if _is_dicom(path)]
    if series and not studies:
        raise CohortError("--series: only DICOM has series, and none is given; leave it out")
    targets += [_dicom(path, modalities, series, alone=len(words) == 1) for path in studies]
    files = [path for path in plain if path.is_file() and path not in studies]
    for path in files:
        if stem(path.name) == path.name:
            raise CohortError(f"{path}: not a NIfTI file by its name (.nii, .nii.gz); convert it, e.g. with dcm2niix")
    if files:
        targets += _best_layout(files, modalities, ", ".join(map(str, files)))
    places = [path for path in plain if path.is_dir() and path not in studies]
    if split is not None and not any(map(_is_prepared, places)):
        raise CohortError(f"--split {split}: only a prepared cohort has splits, and none is given; leave it out")
    for place in places:
        known = _is_prepared(place)
        targets += _prepared(place, modalities, split) if known else _best_layout(place, modalities, str(place))
    return _unique(targets)


def preview_dicom(
    words: Sequence[str], modalities: tuple[str, ...], series: Mapping[str, str] | None = None
) -> list[str]:
    """What is in the DICOM among these words and which series would be used, as lines to print."""
    lines: list[str] = []
    for path in map(Path, words):
        if not path.exists():
            raise CohortError(f"{path}: no such file or folder; check the path")
        if _is_dicom(path):
            from anofpdm.scans.dicom.match import preview_lines
            from anofpdm.scans.dicom.read import preview

            lines += [f"{path}:", *preview_lines(preview(path, modalities, series))]
    if not lines:
        raise CohortError("--preview shows the series of DICOM, and none is given; leave it out")
    return lines


def _is_dicom(path: Path) -> bool:
    """A zip, a DICOM file, or a folder that holds DICOM and no NIfTI but results of ours."""
    if path.is_file():
        return is_zip(path) or (stem(path.name) == path.name and holds_dicom(path))
    if _is_prepared(path) or any(not _is_made_of_scans(file, path) for file in nifti_files(path)):
        return False
    return holds_dicom(path)


def _dicom(path: Path, modalities: tuple[str, ...], series: Mapping[str, str] | None, *, alone: bool) -> Target:
    """One study, looked at and not yet converted. One of many that cannot be used is listed later, with the reason."""
    name = _study_name(path)
    subject = Subject(name, name, dict.fromkeys(modalities, path))
    try:
        from anofpdm.scans.dicom.read import read_study

        study = read_study(path, modalities, series)
    except AnoFPDMError as problem:
        if alone:
            raise
        return Target(replace(subject, problem=str(problem)), bids=False)
    return Target(subject, bids=False, study=study)


def _study_name(path: Path) -> str:
    name = path.name if path.name not in NO_NAMES else path.resolve().name
    return readable(Path(name).stem if path.is_file() else name) or "scan"


def _best_layout(source: Source, modalities: tuple[str, ...], where: str) -> list[Target]:
    """BIDS, if any scan can be had by it; else the layout in which most scans have all that the model needs."""
    layouts: dict[str, Finder] = {
        "bids": lambda files: bids.find_subjects(files, remedy=_by_hand(modalities)),
        "brats21": brats.find_subjects,  # which would take BIDS names too
        "nifti": lambda files: _any_scans(files, modalities),
    }
    best: tuple[int, str, list[Subject]] = (-1, "", [])
    for name, find in layouts.items():
        subjects = _for_the_model([one for one in find(source) if one.images], modalities)
        usable = sum(one.problem is None for one in subjects)
        if subjects and usable > best[0]:
            best = (usable, name, subjects)
        if name == "bids" and usable:
            break
    usable, name, subjects = best
    if not subjects:
        raise CohortError(f"{where}: no scan found in it {_why_none(source)}; {', '.join(modalities)} are needed")
    if not usable:
        raise CohortError(f"{where}: {subjects[0].name}: {subjects[0].problem}")
    return [Target(one, name == "bids") for one in subjects]


def _any_scans(source: Source, modalities: tuple[str, ...]) -> list[Subject]:
    """By the names of files, without what was made of scans: masks, results, brains cut out."""
    files = [path for path in nifti_files(source) if not _is_made_of_scans(path, source)]
    subjects = [one for one in folder.find_subjects(files, modalities) if one.images]
    names = [one.name for one in subjects]
    return [one for one in subjects if not _belongs_to_another(one.name, names)]


def _is_made_of_scans(path: Path, source: Source) -> bool:
    if path.name in OUR_FILES or f"_desc-{bids.OURS}_" in path.name:
        return True
    return isinstance(source, Path) and "derivatives" in path.relative_to(source).parts


def _belongs_to_another(name: str, names: Sequence[str]) -> bool:
    """anna_t1_brain, where there is anna."""
    if not name.lower().endswith(MADE_OF_SCANS):
        return False
    return any(name != other and name.startswith((f"{other}_", f"{other}-")) for other in names)


def _why_none(source: Source) -> str:
    count = sum(1 for _ in nifti_files(source))
    return f"({count} NIfTI files)" if count else "(no NIfTI file; convert DICOM, e.g. with dcm2niix)"


def _by_hand(modalities: tuple[str, ...]) -> str:
    return f"name the files as {' '.join(f'{name}=FILE' for name in modalities)}"


def _for_the_model(subjects: Sequence[Subject], modalities: tuple[str, ...]) -> list[Subject]:
    named = [_named_by_the_model(one, modalities) for one in subjects]
    return with_modalities(named, modalities, remedy=_by_hand(modalities))


def _named_by_the_model(subject: Subject, modalities: tuple[str, ...]) -> Subject:
    """A file without a modality in its name is the one that a model of one modality takes."""
    if len(modalities) != 1 or list(subject.images) != [folder.UNNAMED]:
        return subject
    return replace(subject, images={modalities[0]: subject.images[folder.UNNAMED]})


def _explicit(named: Sequence[tuple[str, Path]], modalities: tuple[str, ...]) -> Target:
    files = dict(named)
    for modality, path in named:
        if sum(other == modality for other, _ in named) > 1:
            raise CohortError(f"{modality}={path}: {modality} is named twice; name each modality once")
    unknown = [name for name in files if name not in modalities]
    if unknown:
        raise CohortError(f"{unknown[0]}={files[unknown[0]]}: the model knows {', '.join(modalities)}")
    for path in files.values():
        if not path.is_file():
            raise CohortError(f"{path}: no such file; check the path")
    first = next(iter(files.values()))
    name = folder.find_subjects([first])[0].name or "scan"
    (subject,) = _for_the_model([Subject(name, name, files)], modalities)
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
        "atlas2": lambda files: bids.find_subjects(files, remedy=_by_hand(modalities)),
        "bids": lambda files: bids.find_subjects(files, remedy=_by_hand(modalities)),
        "nifti": lambda files: folder.find_subjects(files, modalities),
    }
    kind = cohort.manifest["kind"]
    wanted = set((cohort.scans if split is None else cohort.scans[cohort.rows(split)]).tolist())
    subjects = [one for one in finders[kind](source) if one.name in wanted]
    subjects = _for_the_model(subjects, modalities)
    return [Target(one, kind in ("bids", "atlas2")) for one in subjects]


def _is_prepared(place: Path) -> bool:
    return (place / MANIFEST).is_file()


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
        if name in NO_NAMES:
            files = ", ".join(map(str, target.subject.images.values()))
            raise CohortError(f"{files}: the name says nothing of whose scan it is; rename the file")
        if name in seen and seen[name].subject.images != target.subject.images:
            raise CohortError(f"two scans are called {name}; segment them into different folders")
        seen[name] = target
    return list(seen.values())
