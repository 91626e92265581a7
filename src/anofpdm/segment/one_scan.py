"""A scan in any form that the command line takes: files, a folder, DICOM."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import CohortError, ScanError
from anofpdm.options import Raw
from anofpdm.raw.cache import StudyCache
from anofpdm.scans.plausible import DICOM_HEADER, NIFTI_HEADER
from anofpdm.segment.inputs import Target, find_targets
from anofpdm.segment.read_scan import Files
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.result import Segmentation
from anofpdm.segment.segment_scan import segment_files
from anofpdm.util.progress import Progress

Source = str | Path | Sequence[str | Path]
NAMED = 5  # scans in a message


def lowercase_names(files: Files) -> dict[str, str | Path]:
    """Modalities as models name them."""
    lowercase = {name.lower(): path for name, path in files.items()}
    if len(lowercase) < len(files):
        raise ScanError(f"{', '.join(files)}: duplicate modality; give each modality once")
    return lowercase


def find_scan(source: Source, request: SegmentRequest) -> Target:
    """The only scan in files, a folder, or a DICOM study."""
    paths = [str(path) for path in ([source] if isinstance(source, str | Path) else source)]
    if not paths:
        raise CohortError("no file given; give the files of a scan, or its folder")
    targets = find_targets(paths, request.inputs, raw=request.raw)
    if len(targets) > 1:
        names = ", ".join(target.subject.name for target in targets[:NAMED]) + (", ..." if targets[NAMED:] else "")
        raise CohortError(
            f"{', '.join(paths)}: {len(targets)} scans ({names}); give the files or the folder of one of them. "
            "To segment all: anofpdm segment MODEL FOLDER --out DIR"
        )
    (target,) = targets
    if target.subject.problem:
        raise ScanError(f"{target.subject.name}: {target.subject.problem}")
    return target


def segment_source(scan: Files | Source, request: SegmentRequest, progress: Progress, run: StudyCache) -> Segmentation:
    if isinstance(scan, Mapping):
        return segment_files(lowercase_names(scan), request, progress, run)
    target = find_scan(scan, request)
    for note in target.notes:
        run.report(note)
    with target.open() as subject:
        try:
            return segment_target(target, subject, request, progress, run)
        except ScanError as problem:
            raise ScanError(name_series(str(problem), target, subject)) from None


def segment_target(
    target: Target, subject: Subject, request: SegmentRequest, progress: Progress, run: StudyCache
) -> Segmentation:
    """`subject` has NIfTI files, also where the target is DICOM; the summary then names the series."""
    run = replace(run, brains=target.brains)
    result = segment_files(subject.images, request_for(target, request), progress, run)
    if target.study is not None:
        for key, series in target.study.to_dict().items():
            file = name_series(str(subject.images[key]), target, subject)
            result.summary["inputs"][key] |= {**series, "file": file}
        texts = result.summary["warnings"]
        result.summary["warnings"] = [name_series(text, target, subject) for text in texts]
    return result


def request_for(target: Target, request: SegmentRequest) -> SegmentRequest:
    """DICOM series may have one grid but different frames of reference: the patient may have moved."""
    if target.study is None or target.study.on_one_grid or request.raw is Raw.NEVER:
        return request
    return replace(request, raw=Raw.ALWAYS)


def name_series(text: str, target: Target, subject: Subject) -> str:
    """Replace the temporary NIfTI files in a text by the DICOM series that they were converted from."""
    if target.study is None:
        return text
    for name, series in target.study.to_dict().items():
        label = f"{target.study.path.name}, series {series['series']} ({series['description']})"
        text = text.replace(str(subject.images[name]), label).replace(NIFTI_HEADER, DICOM_HEADER)
    return text
