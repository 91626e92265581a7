"""Inputs of segmentation: files, folders in any supported layout, DICOM, or a prepared cohort."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.store import open_cohort
from anofpdm.cohorts.subjects import Source, Subject, nifti_files, normalise_name, stem, with_modalities
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import AnoFPDMError, CohortError
from anofpdm.options import Layout, Raw, parse
from anofpdm.scans.dicom.source import holds_dicom, is_zip
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.util.files import describe_irregular

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import Study  # needs pydicom, an optional dependency

Finder = Callable[[Source], list[Subject]]
OUR_FILES = ("mask.nii.gz", "anomaly_map.nii.gz")  # results outside BIDS
OUR_PREFIXES = ("mask_on_", "anomaly_map_on_")  # on the grids of a raw study's series
DERIVED_WORDS = ("reference", "mask", "seg")  # first in the name of a file that is beside scans, but none itself
DERIVED_SUFFIXES = ("_brain", "_mask", "_brainmask")  # files derived from the scan of that name
INVALID_NAMES = ("", ".", "..")  # as the name of a result folder


@dataclass(frozen=True)
class Target:
    """A scan to segment."""

    subject: Subject  # with the modalities of the model only, in their order; optional ones may be missing
    bids: bool  # whether its results get BIDS names
    study: "Study | None" = None  # for DICOM; the images are then the folder or zip until `open`
    notes: tuple[str, ...] = ()  # lines for the user: how files or series were chosen
    brains: dict[str, bytes] = field(default_factory=dict)  # of series whose images were compared (raw/brain.py)

    @contextlib.contextmanager
    def open(self) -> Iterator[Subject]:
        """The subject with readable files; DICOM is converted to NIfTI files in a temporary folder."""
        if self.study is None:
            yield self.subject
            return
        with tempfile.TemporaryDirectory(prefix="anofpdm-") as temporary:
            yield replace(self.subject, images=self.study.convert(Path(temporary)))


def find_targets(
    inputs: Sequence[str],
    modalities: InputModalities | tuple[str, ...],
    split: str | None = None,
    series: Mapping[str, str] | None = None,  # DICOM: modality to number, UID or description
    raw: Raw = Raw.NEVER,  # never: DICOM series on different grids are refused
) -> list[Target]:
    """Each input is a folder, a NIfTI file, DICOM, or modality=file. Files of one subject are one scan."""
    modalities, targets = as_inputs(modalities), list[Target]()
    assigned = [one for one in inputs if "=" in one and not Path(one).exists()]
    if assigned:
        targets.append(_explicit_target(assigned, modalities))
    paths = [Path(one) for one in inputs if one not in assigned]
    for path in paths:
        _check_path(path)
    studies = [path for path in paths if _is_dicom(path)]
    if series and not studies:
        raise CohortError(f"--series applies to DICOM inputs only, and there are none; {_assignment_hint(modalities)}")
    read = partial(read_dicom_study, modalities=modalities, series=series, raw=raw)
    targets += [_dicom_target(path, modalities, read, alone=len(inputs) == 1) for path in studies]
    files = [path for path in paths if path.is_file() and path not in studies]
    for path in files:
        if stem(path.name) == path.name:
            raise CohortError(f"{path}: not a NIfTI file name (.nii, .nii.gz); convert it, e.g. with dcm2niix")
    if files:
        targets += _best_layout(files, modalities, ", ".join(map(str, files)), raw)
    folders = [path for path in paths if path.is_dir() and path not in studies]
    if split is not None and not any(map(_is_prepared, folders)):
        raise CohortError(f"--split {split} applies to prepared cohorts only, and there is none; leave it out")
    for path in folders:
        targets += _folder_targets(path, modalities, split, raw)
    return check_names(targets)


def _check_path(path: Path) -> None:
    if not path.exists():
        raise CohortError(f"{path}: no such file or folder; check the path")
    if not path.is_dir() and (what := describe_irregular(path)):
        raise CohortError(f"{path}: {what}, not a file or folder of scans; check the path")


def _folder_targets(path: Path, modalities: InputModalities, split: str | None, raw: Raw) -> list[Target]:
    if _is_prepared(path):
        return _cohort_targets(path, modalities, split)
    return _best_layout(path, modalities, str(path), raw)


def preview_dicom(
    inputs: Sequence[str],
    modalities: InputModalities | tuple[str, ...],
    series: Mapping[str, str] | None = None,
) -> list[str]:
    """Table, as lines of text, of the series in these DICOM inputs and of those that would be used."""
    lines: list[str] = []
    for path in map(Path, inputs):
        if not path.exists():
            raise CohortError(f"{path}: no such file or folder; check the path")
        if _is_dicom(path):
            from anofpdm.scans.dicom.match import preview_lines
            from anofpdm.scans.dicom.read import preview

            lines += [f"{path}:", *preview_lines(preview(path, as_inputs(modalities).names, series))]
    if not lines:
        raise CohortError("--preview shows the series of DICOM inputs, and there are none; leave it out")
    return lines


def _is_dicom(path: Path) -> bool:
    """A zip, a DICOM file, or a folder with DICOM files and no NIfTI files except our results."""
    if path.is_file():
        return is_zip(path) or (stem(path.name) == path.name and holds_dicom(path))
    if _is_prepared(path) or any(not _is_derived(file, path) for file in nifti_files(path)):
        return False
    return holds_dicom(path)


def read_dicom_study(path: Path, modalities: InputModalities, series: Mapping[str, str] | None, raw: Raw) -> "Study":
    from anofpdm.raw.unnamed_dicom import choose_by_image
    from anofpdm.scans.dicom.read import read_study

    return read_study(path, modalities, series, None if raw is Raw.NEVER else choose_by_image)


def _dicom_target(path: Path, modalities: InputModalities, read: "Callable[[Path], Study]", *, alone: bool) -> Target:
    """One study, not converted yet. If there are other inputs, an error is recorded and reported later."""
    folder_name = path.name if path.name not in INVALID_NAMES else path.resolve().name
    name = normalise_name(Path(folder_name).stem if path.is_file() else folder_name) or "scan"
    subject = Subject(name, name, dict.fromkeys(modalities.names, path))
    try:
        study = read(path)
    except AnoFPDMError as problem:
        if alone:
            raise
        return Target(replace(subject, problem=str(problem)), bids=False)
    subject = replace(subject, images=dict.fromkeys(study.series, path))
    return Target(subject, bids=False, study=study, notes=study.notes, brains=study.brains)


def _best_layout(source: Source, modalities: InputModalities, where: str, raw: Raw) -> list[Target]:
    """BIDS, if it gives any usable scan; else the layout that gives the most usable scans, and of equals the one that
    gives the most files; else one scan by its images."""
    layouts: dict[Layout, Finder] = {
        Layout.BIDS: partial(bids.find_subjects, remedy=_assignment_hint(modalities)),
        Layout.BRATS21: brats.find_subjects,  # after BIDS, whose names it would accept too
        Layout.NIFTI: partial(_any_scans, modalities=modalities.names),
    }
    best: tuple[tuple[int, int], Layout, list[Subject]] = ((-1, 0), Layout.NIFTI, [])
    for layout, find in layouts.items():
        candidates = [one for one in find(source) if one.images]
        subjects = select_modalities([one for one in candidates if not _is_beside(one, candidates)], modalities)
        images = [len(one.images) for one in subjects if one.problem is None]
        if subjects and (len(images), sum(images)) > best[0]:
            best = ((len(images), sum(images)), layout, subjects)
        if layout is Layout.BIDS and images:
            break
    (usable, _), layout, subjects = best
    if not subjects:
        count = sum(1 for _ in nifti_files(source))
        found = f"{count} NIfTI files" if count else "no NIfTI or DICOM file"
        raise CohortError(f"{where}: no scan found ({found}); give a folder with {', '.join(modalities.needed)}")
    if not usable:
        unnamed = None if raw is Raw.NEVER else _target_by_images(source, modalities)
        if unnamed is None:
            raise CohortError(f"{where}: {subjects[0].name}: {subjects[0].problem}")
        irregular = [
            one for path in nifti_files(source) if describe_irregular(path) for one in folder.find_subjects([path])
        ]
        return [unnamed, *(Target(one, bids=False) for one in irregular)]
    return [Target(one, bids=layout is Layout.BIDS) for one in subjects]


def _target_by_images(source: Source, modalities: InputModalities) -> Target | None:
    from anofpdm.segment.unnamed_files import subject_by_images

    every = (path for path in nifti_files(source) if not _is_derived(path, source))
    files = [path for path in every if not describe_irregular(path)]
    found = subject_by_images(files, modalities, _assignment_hint(modalities))
    return None if found is None else Target(found.subject, bids=False, notes=found.notes, brains=found.brains)


def _any_scans(source: Source, modalities: tuple[str, ...]) -> list[Subject]:
    """By file names, without files derived from scans: masks, results, extracted brains."""
    files = [path for path in nifti_files(source) if not _is_derived(path, source)]
    subjects = [one for one in folder.find_subjects(files, modalities) if one.images]
    names = [one.name for one in subjects]
    return [one for one in subjects if not _is_derived_name(one.name, names)]


def _is_derived(path: Path, source: Source) -> bool:
    if path.name in OUR_FILES or path.name.startswith(OUR_PREFIXES) or f"_desc-{bids.OUR_DESC}_" in path.name:
        return True
    return isinstance(source, Path) and "derivatives" in path.relative_to(source).parts


def _is_beside(subject: Subject, subjects: Sequence[Subject]) -> bool:
    """For example reference_brain_t1, in a folder with another scan."""
    folders = {path.parent for path in subject.images.values()}
    others = (other for other in subjects if not _starts_derived(other.name))
    return _starts_derived(subject.name) and any(
        folders & {path.parent for path in other.images.values()} for other in others
    )


def _starts_derived(name: str) -> bool:
    return name.lower().replace("-", "_").split("_")[0] in DERIVED_WORDS


def _is_derived_name(name: str, names: Sequence[str]) -> bool:
    """For example anna_t1_brain, if there is a scan anna."""
    if not name.lower().endswith(DERIVED_SUFFIXES):
        return False
    return any(name != other and name.startswith((f"{other}_", f"{other}-")) for other in names)


def _assignment_hint(modalities: InputModalities) -> str:
    return f"give the files as {modalities.assignments()}"


def select_modalities(
    subjects: Sequence[Subject], modalities: InputModalities | tuple[str, ...], remedy: str | None = None
) -> list[Subject]:
    """For a model of one modality, a file without a modality in its name has that modality."""
    subjects, wanted = list(subjects), as_inputs(modalities)
    for number, one in enumerate(subjects):
        if len(wanted.names) == 1 and list(one.images) == [folder.UNNAMED]:
            subjects[number] = replace(one, images={wanted.names[0]: one.images[folder.UNNAMED]})
    return with_modalities(subjects, wanted, remedy=remedy or _assignment_hint(wanted))


def _explicit_target(assigned: Sequence[str], modalities: InputModalities) -> Target:
    pairs = [(name.lower(), Path(path)) for name, _, path in (text.partition("=") for text in assigned)]
    files = dict(pairs)
    for name, path in pairs:
        if sum(name == other for other, _ in pairs) > 1:
            raise CohortError(f"{name}={path}: duplicate {name}; give each modality once")
    for name, path in pairs:
        if name not in modalities.names:
            raise CohortError(f"{name}={path}: not a modality of the model; choose from {', '.join(modalities.names)}")
    for path in files.values():
        if not path.is_file():
            raise CohortError(f"{path}: no such file; check the path")
    name = folder.find_subjects([pairs[0][1]])[0].name or "scan"
    (subject,) = select_modalities([Subject(name, name, files)], modalities)
    if subject.problem:
        raise CohortError(f"{name}: {subject.problem}")
    return Target(subject, bids=False)


def _cohort_targets(path: Path, modalities: InputModalities, split: str | None) -> list[Target]:
    """The scans that a prepared cohort was made from."""
    cohort = open_cohort(path)
    source = Path(cohort.manifest["source"])
    if not source.is_dir():
        raise CohortError(f"{path}: its source folder {source} does not exist any more; give the folder of the scans")
    find_bids = partial(bids.find_subjects, remedy=_assignment_hint(modalities))
    finders: dict[Layout, Finder] = {
        Layout.BRATS21: brats.find_subjects,
        Layout.ATLAS2: find_bids,
        Layout.BIDS: find_bids,
        Layout.NIFTI: partial(folder.find_subjects, modalities=modalities.names),
    }
    layout = parse(Layout, cohort.manifest["kind"])
    wanted = set((cohort.scans if split is None else cohort.scans[cohort.rows(split)]).tolist())
    subjects = select_modalities([one for one in finders[layout](source) if one.name in wanted], modalities)
    return [Target(one, bids=finders[layout] is find_bids) for one in subjects]


def _is_prepared(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def check_names(targets: list[Target]) -> list[Target]:
    """Scans of equal names would overwrite each other's results."""
    seen: dict[str, Target] = {}
    for target in targets:
        name = target.subject.name
        if name in INVALID_NAMES:
            files = ", ".join(map(str, target.subject.images.values()))
            raise CohortError(f"{files}: no subject in the file name; rename the file")
        if name in seen and seen[name].subject.images != target.subject.images:
            raise CohortError(f"{name}: two scans have this name; segment them into different folders")
        seen[name] = target
    return list(seen.values())
