"""Inputs of segmentation: files, folders in any supported layout, DICOM, or a prepared cohort."""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.store import open_cohort
from anofpdm.cohorts.subjects import Source, Subject, is_nifti_name, nifti_files, normalise_name, with_modalities
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import AnoFPDMError, CohortError
from anofpdm.options import Layout, Raw, parse
from anofpdm.scans.dicom.source import holds_dicom, is_zip
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.util.files import describe_irregular

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import DicomStudy  # needs pydicom, an optional dependency

# Results outside BIDS, those on the grids of a raw study's series, and those in BIDS.
OURS = re.compile(rf"(mask|anomaly_map)(\.nii\.gz|_on_.*)|.*_desc-{bids.OUR_DESC}_.*", re.DOTALL)
# Names of files that are beside scans, but none themselves.
DERIVED = re.compile("(reference|mask|seg)([_-].*)?", re.IGNORECASE | re.DOTALL)
DERIVED_SUFFIXES = ("_brain", "_mask", "_brainmask")  # files derived from the scan of that name
INVALID_NAMES = ("", ".", "..")  # as the name of a result folder


@dataclass(frozen=True)
class Target:
    """A scan to segment."""

    subject: Subject  # with the modalities of the model only, in their order; optional ones may be missing
    bids: bool  # whether its results get BIDS names
    study: "DicomStudy | None" = None  # for DICOM; the images are then the folder or zip until `open`
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
    wanted, targets = as_inputs(modalities), list[Target]()
    assigned = [text for text in inputs if "=" in text and not Path(text).exists()]
    if assigned:
        targets.append(_explicit_target(assigned, wanted))
    paths = [_existing(text) for text in inputs if text not in assigned]
    studies = [path for path in paths if _is_dicom(path)]
    if series and not studies:
        raise CohortError(f"--series applies to DICOM inputs only, and there are none; {_assignment_hint(wanted)}")
    for path in studies:
        read = partial(read_dicom_study, path, wanted, series, raw)
        targets.append(_dicom_target(path, wanted, read, alone=len(inputs) == 1))
    files = [path for path in paths if path.is_file() and path not in studies]
    for path in files:
        if not is_nifti_name(path.name):
            raise CohortError(f"{path}: not a NIfTI file name (.nii, .nii.gz); convert it, e.g. with dcm2niix")
    if files:
        targets += _best_layout(files, wanted, ", ".join(map(str, files)), raw)
    folders = [path for path in paths if path.is_dir() and path not in studies]
    if split is not None and not any(map(_is_prepared, folders)):
        raise CohortError(f"--split {split} applies to prepared cohorts only, and there is none; leave it out")
    for path in folders:
        if _is_prepared(path):
            targets += _cohort_targets(path, wanted, split)
        else:
            targets += _best_layout(path, wanted, str(path), raw)
    return check_names(targets)


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise CohortError(f"{path}: no such file or folder; check the path")
    if not path.is_dir() and (what := describe_irregular(path)):
        raise CohortError(f"{path}: {what}, not a file or folder of scans; check the path")
    return path


def preview_dicom(
    inputs: Sequence[str],
    modalities: InputModalities | tuple[str, ...],
    series: Mapping[str, str] | None = None,
) -> list[str]:
    """Table, as lines of text, of the series in these DICOM inputs and of those that would be used."""
    lines: list[str] = []
    for path in map(_existing, inputs):
        if _is_dicom(path):
            from anofpdm.scans.dicom.read import preview

            lines += [f"{path}:", *preview(path, as_inputs(modalities).names, series)]
    if not lines:
        raise CohortError("--preview shows the series of DICOM inputs, and there are none; leave it out")
    return lines


def _is_dicom(path: Path) -> bool:
    """A zip, a DICOM file, or a folder with DICOM files and no NIfTI files except our results."""
    if path.is_file():
        return is_zip(path) or (not is_nifti_name(path.name) and holds_dicom(path))
    return not _is_prepared(path) and not _scan_files(path) and holds_dicom(path)


def read_dicom_study(
    path: Path, modalities: InputModalities, series: Mapping[str, str] | None, raw: Raw
) -> "DicomStudy":
    from anofpdm.raw.unnamed_dicom import choose_by_image
    from anofpdm.scans.dicom.read import read_study

    return read_study(path, modalities, series, None if raw is Raw.NEVER else choose_by_image)


def _dicom_target(path: Path, modalities: InputModalities, read: "Callable[[], DicomStudy]", *, alone: bool) -> Target:
    """One study, not converted yet. If there are other inputs, an error is recorded and reported later."""
    folder_name = path.name if path.name not in INVALID_NAMES else path.resolve().name
    name = normalise_name(Path(folder_name).stem if path.is_file() else folder_name) or "scan"
    subject = Subject(name, name, dict.fromkeys(modalities.names, path))
    try:
        study = read()
    except AnoFPDMError as problem:
        if alone:
            raise
        return Target(replace(subject, problem=str(problem)), bids=False)
    subject = replace(subject, images=dict.fromkeys(study.series, path))
    return Target(subject, bids=False, study=study, notes=study.notes, brains=study.brains)


def _best_layout(source: Source, modalities: InputModalities, where: str, raw: Raw) -> list[Target]:
    """BIDS, if it gives any usable scan; else the layout that gives the most usable scans, and of equals the one that
    gives the most files; else one scan by its images."""
    finders = _finders(modalities) | {Layout.NIFTI: partial(_any_scans, modalities=modalities.names)}
    options = []
    for layout in (Layout.BIDS, Layout.BRATS21, Layout.NIFTI):  # BraTS would accept names of BIDS, too
        candidates = [subject for subject in finders[layout](source) if subject.images]
        subjects = [subject for subject in candidates if not _is_beside(subject, candidates)]
        subjects = select_modalities(subjects, modalities)
        images = [len(subject.images) for subject in subjects if subject.problem is None]
        if subjects:
            options.append((len(images), sum(images), layout, subjects))
        if layout is Layout.BIDS and images:
            break
    if not options:
        count = sum(1 for _ in nifti_files(source))
        files = f"{count} NIfTI files" if count else "no NIfTI or DICOM file"
        raise CohortError(f"{where}: no scan found ({files}); give a folder with {', '.join(modalities.needed)}")
    usable, _, layout, subjects = max(options, key=lambda option: option[:2])  # of equals, the first
    if usable:
        return [Target(subject, bids=layout is Layout.BIDS) for subject in subjects]
    targets = [] if raw is Raw.NEVER else _targets_by_images(source, modalities)
    if not targets:
        raise CohortError(f"{where}: {subjects[0].name}: {subjects[0].problem}")
    return targets


def _finders(modalities: InputModalities) -> dict[Layout, Callable[[Source], list[Subject]]]:
    find_bids = partial(bids.find_subjects, remedy=_assignment_hint(modalities))
    return {
        Layout.BRATS21: brats.find_subjects,
        Layout.ATLAS2: find_bids,
        Layout.BIDS: find_bids,
        Layout.NIFTI: partial(folder.find_subjects, modalities=modalities.names),
    }


def _targets_by_images(source: Source, modalities: InputModalities) -> list[Target]:
    """The scan that the files are by their images, if they are one study, and what is no file."""
    from anofpdm.segment.unnamed_files import subject_by_images

    every = _scan_files(source)
    irregular = [path for path in every if describe_irregular(path)]
    regular = [path for path in every if path not in irregular]
    assigned = subject_by_images(regular, modalities, _assignment_hint(modalities))
    if assigned is None:
        return []
    subject, chosen, brains = assigned
    notes = tuple(f"{file} is used as {modality}, by its image" for modality, file in chosen.items())
    failing = [Target(subject, bids=False) for path in irregular for subject in folder.find_subjects([path])]
    return [Target(subject, bids=False, notes=notes, brains=brains), *failing]


def _any_scans(source: Source, modalities: tuple[str, ...]) -> list[Subject]:
    """By file names, without files derived from scans: masks, results, extracted brains."""
    subjects = [subject for subject in folder.find_subjects(_scan_files(source), modalities) if subject.images]
    names = [subject.name for subject in subjects]
    return [subject for subject in subjects if not _is_derived_name(subject.name, names)]


def _scan_files(source: Source) -> list[Path]:
    """NIfTI files that are neither our results nor in `derivatives`."""
    return [
        path
        for path in nifti_files(source)
        if not OURS.fullmatch(path.name)
        and not (isinstance(source, Path) and "derivatives" in path.relative_to(source).parts)
    ]


def _is_beside(subject: Subject, subjects: Sequence[Subject]) -> bool:
    """For example reference_brain_t1, in a folder with another scan."""
    others = [other for other in subjects if not DERIVED.fullmatch(other.name)]
    folders = {path.parent for other in others for path in other.images.values()}
    return subject not in others and any(path.parent in folders for path in subject.images.values())


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
    for number, subject in enumerate(subjects):
        if len(wanted.names) == 1 and list(subject.images) == [folder.UNNAMED]:
            subjects[number] = replace(subject, images={wanted.names[0]: subject.images[folder.UNNAMED]})
    return with_modalities(subjects, wanted, remedy=remedy or _assignment_hint(wanted))


def _explicit_target(assigned: Sequence[str], modalities: InputModalities) -> Target:
    files: dict[str, Path] = {}
    for text in assigned:
        name, _, file = text.partition("=")
        modality, path = name.lower(), Path(file)
        if modality in files:
            raise CohortError(f"{modality}={path}: duplicate {modality}; give each modality once")
        if modality not in modalities.names:
            choices = ", ".join(modalities.names)
            raise CohortError(f"{modality}={path}: not a modality of the model; choose from {choices}")
        if not path.is_file():
            raise CohortError(f"{path}: no such file; check the path")
        files[modality] = path
    name = folder.find_subjects([next(iter(files.values()))])[0].name or "scan"
    (subject,) = select_modalities([Subject(name, name, files)], modalities)
    if subject.problem:
        raise CohortError(f"{name}: {subject.problem}")
    return Target(subject, bids=False)


def _cohort_targets(path: Path, modalities: InputModalities, split: str | None) -> list[Target]:
    """The scans that a prepared cohort was made from."""
    cohort = open_cohort(path)
    source = Path(cohort.manifest.source)
    if not source.is_dir():
        raise CohortError(f"{path}: its source folder {source} does not exist any more; give the folder of the scans")
    layout = parse(Layout, cohort.manifest.kind)
    names = set((cohort.scans if split is None else cohort.scans[cohort.rows(split)]).tolist())
    subjects = [subject for subject in _finders(modalities)[layout](source) if subject.name in names]
    is_bids = layout in (Layout.ATLAS2, Layout.BIDS)
    return [Target(subject, is_bids) for subject in select_modalities(subjects, modalities)]


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
