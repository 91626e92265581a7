"""Inputs of segmentation: files, folders in any supported layout, DICOM, or a prepared cohort."""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.choices import Layout, Raw, parse
from anofpdm.cohorts.layouts import folder
from anofpdm.cohorts.store import open_cohort
from anofpdm.cohorts.subjects import Source, Subject, is_nifti_name, normalise_name
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import AnoFPDMError, CohortError, ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.scans.dicom.source import holds_dicom, is_zip
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.scans.plausible import DICOM_HEADER, NIFTI_HEADER
from anofpdm.segment.scan_files import (
    assignment_hint,
    best_layout,
    find_subjects,
    scan_files,
    select_modalities,
    subject_by_images,
)
from anofpdm.util.files import describe_irregular

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import DicomStudy  # needs pydicom, an optional dependency

# A scan as `Model.segment` takes it: files by modality, or what the command line takes.
GivenScan = Mapping[str, str | Path] | str | Path | Sequence[str | Path]
BIDS_LAYOUTS = (Layout.BIDS, Layout.ATLAS2)  # whose results get BIDS names
INVALID_NAMES = ("", ".", "..")  # as the name of a result folder
MOST_NAMED = 5  # scans in a message


@dataclass(frozen=True)
class Target:
    """A scan to segment."""

    subject: Subject  # with the modalities of the model only, in their order; optional ones may be missing
    bids: bool = False  # whether its results get BIDS names
    study: "DicomStudy | None" = None  # for DICOM; the images are then the folder or zip until `open`
    notes: tuple[str, ...] = ()  # lines for the user: how files or series were chosen
    brains: dict[str, bytes] = field(default_factory=dict)  # of series whose images were compared (raw/brain.py)

    @contextlib.contextmanager
    def open(self) -> Iterator["Target"]:
        """With readable files; DICOM is converted to NIfTI files in a temporary folder, and errors name its series."""
        if self.study is None:
            yield self
            return
        with tempfile.TemporaryDirectory(prefix="anofpdm-") as temporary:
            opened = replace(self, subject=replace(self.subject, images=self.study.convert(Path(temporary))))
            try:
                yield opened
            except ScanError as problem:
                raise ScanError(opened.name_series(str(problem))) from None

    def name_series(self, text: str) -> str:
        """Replace the temporary NIfTI files in a text by the DICOM series that they were converted from."""
        if self.study is None:
            return text
        for name, series in self.study.to_dict().items():
            label = f"{self.study.path.name}, series {series['series']} ({series['description']})"
            text = text.replace(str(self.subject.images[name]), label).replace(NIFTI_HEADER, DICOM_HEADER)
        return text


def find_scan(scan: GivenScan, modalities: InputModalities, raw: Raw) -> Target:
    """The only scan in files, a folder, or a DICOM study."""
    if isinstance(scan, Mapping):
        images = {name.lower(): Path(path) for name, path in scan.items()}
        if len(images) < len(scan):
            raise ScanError(f"{', '.join(scan)}: duplicate modality; give each modality once")
        return Target(Subject("scan", "scan", images))
    paths = [str(path) for path in ([scan] if isinstance(scan, str | Path) else scan)]
    if not paths:
        raise CohortError("no file given; give the files of a scan, or its folder")
    targets = find_targets(paths, modalities, raw=raw)
    if len(targets) > 1:
        names = ", ".join(target.subject.name for target in targets[:MOST_NAMED])
        names += ", ..." if targets[MOST_NAMED:] else ""
        raise CohortError(
            f"{', '.join(paths)}: {len(targets)} scans ({names}); give the files or the folder of one of them. "
            "To segment all: anofpdm segment MODEL FOLDER --out DIR"
        )
    (target,) = targets
    if target.subject.problem:
        raise ScanError(f"{target.subject.name}: {target.subject.problem}")
    return target


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
    cohorts = [path for path in paths if (path / MANIFEST).is_file()]
    studies = [path for path in paths if path not in cohorts and _is_dicom(path)]
    if series and not studies:
        raise CohortError(f"--series applies to DICOM inputs only, and there are none; {assignment_hint(wanted)}")
    if split is not None and not cohorts:
        raise CohortError(f"--split {split} applies to prepared cohorts only, and there is none; leave it out")
    files: list[Path] = []
    for path in paths:
        if path in studies:
            targets.append(_dicom_target(path, wanted, series, raw, alone=len(inputs) == 1))
        elif path in cohorts:
            targets += _cohort_targets(path, wanted, split)
        elif path.is_dir():
            targets += _layout_targets(path, wanted, str(path), raw)
        elif is_nifti_name(path.name):
            files.append(path)
        else:
            raise CohortError(f"{path}: not a NIfTI file name (.nii, .nii.gz); convert it, e.g. with dcm2niix")
    if files:
        targets += _layout_targets(files, wanted, ", ".join(map(str, files)), raw)
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
    return not scan_files(path) and holds_dicom(path)


def read_dicom_study(
    path: Path, modalities: InputModalities, series: Mapping[str, str] | None, raw: Raw, find_brain: BrainFinder
) -> "DicomStudy":
    from anofpdm.raw.unnamed_dicom import choose_by_image
    from anofpdm.scans.dicom.read import read_study

    return read_study(path, modalities, series, None if raw is Raw.NEVER else partial(choose_by_image, find_brain))


def _dicom_target(
    path: Path, modalities: InputModalities, series: Mapping[str, str] | None, raw: Raw, *, alone: bool
) -> Target:
    """One study, not converted yet. If there are other inputs, an error is recorded and reported later."""
    folder_name = path.name if path.name not in INVALID_NAMES else path.resolve().name
    name = normalise_name(Path(folder_name).stem if path.is_file() else folder_name) or "scan"
    subject = Subject(name, name, dict.fromkeys(modalities.names, path))
    find_brain = BrainFinder()
    try:
        study = read_dicom_study(path, modalities, series, raw, find_brain)
    except AnoFPDMError as problem:
        if alone:
            raise
        return Target(replace(subject, problem=str(problem)))
    subject = replace(subject, images=dict.fromkeys(study.series, path))
    return Target(subject, study=study, notes=study.notes, brains=find_brain.extracted)


def _layout_targets(source: Source, modalities: InputModalities, where: str, raw: Raw) -> list[Target]:
    """By the best layout; where it gives no usable scan, one scan by its images."""
    subjects, layout = best_layout(source, modalities, where)
    if any(subject.problem is None for subject in subjects):
        return [Target(subject, bids=layout is Layout.BIDS) for subject in subjects]
    find_brain = BrainFinder()
    assigned = None if raw is Raw.NEVER else subject_by_images(scan_files(source), modalities, find_brain)
    if assigned is None:
        raise CohortError(f"{where}: {subjects[0].name}: {subjects[0].problem}")
    subject, notes = assigned
    return [Target(subject, notes=notes, brains=find_brain.extracted)]


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
    name = normalise_name(folder.parse_name(next(iter(files.values())))[0]) or "scan"
    (subject,) = select_modalities([Subject(name, name, files)], modalities)
    if subject.problem:
        raise CohortError(f"{name}: {subject.problem}")
    return Target(subject)


def _cohort_targets(path: Path, modalities: InputModalities, split: str | None) -> list[Target]:
    """The scans that a prepared cohort was made from."""
    cohort = open_cohort(path)
    source = Path(cohort.manifest.source)
    if not source.is_dir():
        raise CohortError(f"{path}: its source folder {source} does not exist any more; give the folder of the scans")
    layout = parse(Layout, cohort.manifest.kind)
    names = set((cohort.scans if split is None else cohort.scans[cohort.rows(split)]).tolist())
    subjects = [subject for subject in find_subjects(layout, source, modalities) if subject.name in names]
    return [Target(subject, layout in BIDS_LAYOUTS) for subject in select_modalities(subjects, modalities)]


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
