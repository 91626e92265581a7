"""Which NIfTI files of a folder are scans: by a known layout, by their names, or by their images."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from anofpdm.choices import Layout
from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.subjects import MASK, Source, Subject, nifti_files, normalise_name, with_modalities
from anofpdm.errors import CohortError, ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.scans import read_volume
from anofpdm.scans.modalities import InputModalities, as_inputs

# Results outside BIDS, those on the grids of a raw study's series, and those in BIDS.
OURS = re.compile(rf"(mask|anomaly_map)(\.nii\.gz|_on_.*)|.*_desc-{bids.OUR_DESC}_.*", re.DOTALL)
# Names of files that are beside scans, but none themselves.
DERIVED = re.compile("(reference|mask|seg)([_-].*)?", re.IGNORECASE | re.DOTALL)
DERIVED_SUFFIXES = ("_brain", "_mask", "_brainmask")  # files derived from the scan of that name


def best_layout(source: Source, modalities: InputModalities, where: str) -> tuple[list[Subject], Layout]:
    """The scans in BIDS, if it gives any usable one; else in the layout that gives the most usable scans, and of equals
    in the one that gives the most files."""
    options = []
    for layout in (Layout.BIDS, Layout.BRATS21, Layout.NIFTI):  # BraTS would accept names of BIDS, too
        files = scan_files(source) if layout is Layout.NIFTI else source
        candidates = [subject for subject in find_subjects(layout, files, modalities) if subject.images]
        scans = [subject for subject in candidates if not _is_derived(subject, candidates)]
        subjects = select_modalities(scans, modalities)
        images = [len(subject.images) for subject in subjects if subject.problem is None]
        if subjects:
            options.append(((len(images), sum(images)), subjects, layout))
        if layout is Layout.BIDS and images:
            break
    if not options:
        count = sum(1 for _ in nifti_files(source))
        files_there = f"{count} NIfTI files" if count else "no NIfTI or DICOM file"
        needed = ", ".join(modalities.needed)
        raise CohortError(f"{where}: no scan found ({files_there}); give a folder with {needed}")
    _, subjects, layout = max(options, key=lambda option: option[0])  # of equals, the first
    return subjects, layout


def find_subjects(layout: Layout, source: Source, modalities: InputModalities) -> list[Subject]:
    if layout is Layout.BRATS21:
        return brats.find_subjects(source)
    if layout is Layout.NIFTI:
        return folder.find_subjects(source, modalities.names)
    return bids.find_subjects(source, remedy=assignment_hint(modalities))


def scan_files(source: Source) -> list[Path]:
    """NIfTI files that are neither our results nor in `derivatives`."""
    return [
        path
        for path in nifti_files(source)
        if not OURS.fullmatch(path.name)
        and not (isinstance(source, Path) and "derivatives" in path.relative_to(source).parts)
    ]


def _is_derived(subject: Subject, subjects: Sequence[Subject]) -> bool:
    """From another scan: for example anna_t1_brain, if there is a scan anna, or reference_brain_t1 in the folder of
    another scan."""
    name, others = subject.name, [other for other in subjects if not DERIVED.fullmatch(other.name)]
    prefixes = tuple(f"{other.name}{separator}" for other in subjects for separator in "_-")
    if name.lower().endswith(DERIVED_SUFFIXES) and name.startswith(prefixes):
        return True
    if subject in others:
        return False
    folders = {path.parent for other in others for path in other.images.values()}
    return any(path.parent in folders for path in subject.images.values())


def assignment_hint(modalities: InputModalities) -> str:
    return f"give the files as {modalities.assignments()}"


def select_modalities(
    subjects: Sequence[Subject], modalities: InputModalities | tuple[str, ...], remedy: str | None = None
) -> list[Subject]:
    """For a model of one modality, a file without a modality in its name has that modality."""
    wanted, named = as_inputs(modalities), list[Subject]()
    for subject in subjects:
        if len(wanted.names) == 1 and list(subject.images) == [folder.UNNAMED]:
            subject = replace(subject, images={wanted.names[0]: subject.images[folder.UNNAMED]})
        named.append(subject)
    return with_modalities(named, wanted, remedy=remedy or assignment_hint(wanted))


def subject_by_images(
    files: Sequence[Path], modalities: InputModalities, find_brain: BrainFinder
) -> tuple[Subject, tuple[str, ...]] | None:
    """One scan, some of whose names do not give their contrast; lines on the files that were chosen by their images.
    None where the files cannot be of one study.

    CohortError where the images do not give the modalities.
    """
    from anofpdm.raw.unnamed_series import assign_by_image

    named, unnamed = _split_by_name(files, modalities.names)
    if len(modalities.names) < 2 or not unnamed:
        return None
    where = unnamed[0].parent
    readers = {path.name: partial(read_volume, path) for path in unnamed}
    try:
        missing, hint = modalities.without(named), assignment_hint(modalities)
        assigned = assign_by_image(find_brain, readers, missing, tuple(named), hint)
    except ScanError as problem:
        raise CohortError(f"{where}: {problem}") from None
    if not assigned:
        return None
    images = named | {name: where / file for name, file in assigned.items()}
    name = normalise_name(where.resolve().name) or "scan"
    subject = Subject(name, name, {modality: images[modality] for modality in modalities.select(images)})
    return subject, tuple(f"{file} is used as {name}, by its image" for name, file in assigned.items())


def _split_by_name(files: Sequence[Path], modalities: tuple[str, ...]) -> tuple[dict[str, Path], list[Path]]:
    """Files by the modality in their names, and those without; none where they are not of one study."""
    named, unnamed = dict[str, Path](), list[Path]()
    for path in files:
        _, role = folder.parse_name(path, modalities)
        if role in named or path.parent != files[0].parent:
            return {}, []
        if role == folder.UNNAMED:
            unnamed.append(path)
        elif role != MASK:
            named[role] = path
    return named, unnamed
