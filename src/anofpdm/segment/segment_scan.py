"""The way of a scan: read (a raw study is registered and stripped first), cut into axial slices, decided on slice by
slice, and back on its grid."""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import UNSET

from anofpdm.choices import Raw
from anofpdm.errors import ContrastWarning, ScanError, ScanWarning
from anofpdm.method.decision import Decisions
from anofpdm.raw.brain import DEEPBET, BrainFinder
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.raw.template import in_template_space
from anofpdm.report.display import DisplayData, SliceSpace, average_estimate
from anofpdm.report.summary import InputFile, Summary
from anofpdm.scans import AxialPlanes, Grid, Scan, read_scan, scan_slices
from anofpdm.scans.findings import Finding, find_lesions
from anofpdm.scans.grid import on_one_grid
from anofpdm.scans.nifti import read_grid
from anofpdm.scans.plausible import check_head, is_stripped
from anofpdm.scans.slices import LEAST_FOREGROUND, foreground_of
from anofpdm.segment.engines import EngineSlices, decide_where_it_fits
from anofpdm.segment.inputs import Target
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.result import Segmentation, slice_table
from anofpdm.segment.scan_checks import check_scan, record_warnings
from anofpdm.util.files import file_sha256
from anofpdm.util.progress import Progress, portion

STUDENT_PORTION = 0.1  # of the time, where the diffusion model explains slices afterwards
PREPARATION_PORTION = 0.8  # of the time, where a raw study is prepared first
SMALLEST_HEAD_ML = 500  # phantoms are smaller


@dataclass(frozen=True)
class ReadScan:
    """Volumes on one grid, and where they come from."""

    scan: Scan
    files: Mapping[str, Path]  # by modality of the scan
    size: int  # slices are size x size
    study: Study | None = None  # that the scan was prepared from; None: the files are on one grid already

    @property
    def where(self) -> Path:
        """The file to name in messages: that of the reference."""
        return self.files[self.scan.modalities[0]]

    @cached_property
    def planes(self) -> AxialPlanes:
        return AxialPlanes(self.scan.grid, self.size)

    @property
    def grid(self) -> Grid:
        """Of the results."""
        return self.scan.grid if self.study is None else self.study.reference.grid

    def cut(self, nominal_slice_mm: float | None) -> EngineSlices:
        """Axial slices; of spacing `nominal_slice_mm`, if given, instead of that in the header."""
        thin = [axis for axis in range(3) if self.scan.grid.shape[axis] == 1]
        if thin and thin != [self.scan.grid.axial_axis]:
            problem = "a single slice that is not axial; slices are segmented axially, give a 3D scan"
            raise ScanError(f"{self.where}: {problem}")
        slices = scan_slices(self.scan, self.size)
        if not len(slices.indices):
            raise ScanError(f"{self.where}: no axial slice has enough foreground; is it a head scan?")
        spacing_mm = nominal_slice_mm or self.planes.spacing_mm
        return EngineSlices(slices.pixels, self.scan.modalities, slices.indices, spacing_mm)

    def to_grid(self, slices: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[n, H, W] of slices of the network -> [i, j, k] on the grid of the results."""
        volume = self.planes.to_native(slices, indices)
        return volume if self.study is None else self.study.to_reference(volume)

    @property
    def slice_space(self) -> SliceSpace:
        return SliceSpace(self.scan.grid, np.eye(4) if self.study is None else self.study.reference_to_scan)

    @property
    def brain_ml(self) -> float:
        """Of a scan with its skull, of the head."""
        brain = self.study.brain if self.study else foreground_of(self.scan.volumes)
        return float(brain.sum() * self.scan.grid.voxel_ml)


def segment_scan(target: Target, request: SegmentRequest, progress: Progress, cache: StudyCache) -> Segmentation:
    """`target` is open: its images are NIfTI files, also where it is DICOM."""
    start, request = time.perf_counter(), request_for(target, request)
    cache = replace(cache, progress=portion(progress, 0, PREPARATION_PORTION), brains={**cache.brains, **target.brains})
    with record_warnings() as warned:
        scan = read(target.subject.images, request, cache)
        slices = scan.cut(request.scans.expects.nominal_slice_mm)
        if scan.study is not None:
            progress = portion(progress, PREPARATION_PORTION, 1 - PREPARATION_PORTION)
        deciding = progress if request.explainer is None else portion(progress, 0, STUDENT_PORTION)
        decisions = decide_where_it_fits(request.engine, slices, deciding)
        anomaly_map, outlines = (scan.to_grid(part, slices.indices) for part in (decisions.maps, decisions.outlines))
        mask = outlines >= 0.5
        findings = find_lesions(mask, anomaly_map, scan.grid.affine)
        check_scan(scan, slices, findings, request)
        rest = portion(progress, STUDENT_PORTION, 1 - STUDENT_PORTION)
        decisions = _explain(decisions, scan, slices, findings, request, rest)
    if any(isinstance(warning, ContrastWarning) for warning in warned):
        decisions = replace(decisions, estimated_dice=None)  # by the probabilities, it would be too high
    texts = list(dict.fromkeys(target.name_series(str(warning)) for warning in warned))
    seconds = round(time.perf_counter() - start, 2)
    return Segmentation(
        mask=mask,
        anomaly_map=anomaly_map,
        grid=scan.grid,
        slices=slice_table(decisions, slices.indices, scan.planes.pixel_mm),
        findings=findings,
        decisions=decisions,
        summary=_summary(target, scan, request, decisions, mask, findings, texts, seconds),
        display=_display_data(scan, slices, request),
        series=() if scan.study is None else scan.study.series,
        pictures={} if scan.study is None else scan.study.pictures,
    )


def request_for(target: Target, request: SegmentRequest) -> SegmentRequest:
    """DICOM series may have one grid but different frames of reference: the patient may have moved."""
    if target.study is None or target.study.on_one_grid or request.raw is Raw.NEVER:
        return request
    return replace(request, raw=Raw.ALWAYS)


def read(files: Mapping[str, Path], request: SegmentRequest, cache: StudyCache) -> ReadScan:
    """`files`: NIfTI, by modality in lower case. A raw study is prepared, and its preparation kept in the cache."""
    inputs, known = request.inputs, {*request.scans.modalities, *request.modalities}
    unknown = [name for name in files if name not in known]
    if unknown and inputs.optional:  # a misspelt optional modality would count as missing
        names = ", ".join(request.modalities)
        raise ScanError(f"{', '.join(unknown)}: not a modality of the model; choose from {names}")
    if missing := inputs.missing_needed(files):
        raise ScanError(
            f"no {' or '.join(missing)} given; the model needs {', '.join(inputs.needed)} of every scan, "
            f"and got {', '.join(files) or 'nothing'}{inputs.explain()}"
        )
    used = {name: files[name] for name in inputs.select(files)}
    scan = _scan_in_place(used, request)
    if scan is not None:
        return ReadScan(scan, used, request.scans.size)
    brain = request.brain
    command = None if brain.command is None else brain.run
    finder = BrainFinder(brain.mask, command, brain.description() or DEEPBET, cache.brains)
    study = Study(used, study_options(request), cache, finder).prepare()
    return ReadScan(study.scan, used, request.scans.size, study)


def _scan_in_place(files: Mapping[str, Path], request: SegmentRequest) -> Scan | None:
    """The scan without any preparation; None where it has to be prepared."""
    first, expects = next(iter(files.values())), request.scans.expects
    choose = request.raw is not Raw.NEVER and all(path.is_file() for path in files.values())
    if choose and (request.raw is Raw.ALWAYS or not on_one_grid([read_grid(path) for path in files.values()])):
        return None
    scan = read_scan(dict(files))
    if not request.trust_header:
        check_head(scan.volumes, scan.grid, first)
    if choose and not request.brain.given and not expects.skull and _is_whole_head(scan, request):
        return None
    scan = request.brain.apply(scan, first)
    # A head with its skull cannot be compared with the template.
    if choose and expects.template is not None and not in_template_space(scan.volumes[0] > 0, scan.grid):
        return None
    return scan


def _is_whole_head(scan: Scan, request: SegmentRequest) -> bool:
    """Far more foreground than in calibration, and more than a brain, in every series."""
    most = max(request.scans.usual_foreground[1], LEAST_FOREGROUND)
    for volume in scan.volumes:
        foreground = volume > 0
        if foreground.mean() <= most or foreground.sum() * scan.grid.voxel_ml <= SMALLEST_HEAD_ML:
            return False
        if is_stripped(volume, scan.grid):
            return False
    return True


def study_options(request: SegmentRequest) -> StudyOptions:
    """Slices are divided where they are too far apart for the nearest neighbours that the network takes."""
    expects = request.scans.expects
    counted = expects.nominal_slice_mm is not None
    distances = () if counted else [abs(mm) for mm in request.engine.neighbours_mm]
    return StudyOptions(expects, min(distances, default=None), request.trust_header)


def _explain(
    decisions: Decisions,
    scan: ReadScan,
    slices: EngineSlices,
    findings: Sequence[Finding],
    request: SegmentRequest,
    progress: Progress,
) -> Decisions:
    """A student's decisions, with the diffusion model's evidence on the requested slices, or on the central slice of
    each finding."""
    if request.explainer is None:
        return decisions
    if isinstance(request.explain, str):
        rows = np.unique(scan.slice_space.central_rows(findings, slices.indices)).astype(int)
    else:
        rows = rows_to_explain(request.explain or (), slices.indices, scan.where)
    if not len(rows):
        return decisions
    evidence = decide_where_it_fits(request.explainer, slices.rows(rows), progress).measured
    return replace(decisions, evidence=replace(evidence, rows=rows))


def rows_to_explain(requested: Sequence[int], indices: np.ndarray, where: object) -> np.ndarray:
    """Rows of these slices, counted from 1. Warns about those that are not among the analysed ones."""
    numbers = indices + 1
    if missing := sorted(set(requested) - set(numbers.tolist())):
        analysed = f"slices {numbers[0]} to {numbers[-1]} were analysed (counted from 1)"
        text = f"{where}: no slice {', '.join(map(str, missing))} to explain; {analysed}"
        warnings.warn(text, ScanWarning, stacklevel=2)
    return np.flatnonzero(np.isin(numbers, requested))


def _summary(
    target: Target,
    scan: ReadScan,
    request: SegmentRequest,
    decisions: Decisions,
    mask: np.ndarray,
    findings: Sequence[Finding],
    warned: list[str],
    seconds: float,
) -> Summary:
    """Of DICOM, with the series of the study instead of temporary files."""
    series = {} if target.study is None else target.study.to_dict()
    estimate = average_estimate(decisions)
    return Summary(
        volume_ml=round(float(mask.sum() * scan.grid.voxel_ml), 4),
        estimated_dice=None if math.isnan(estimate) else round(estimate, 4),
        findings=len(findings),
        slices=len(decisions.masks),
        slices_detected=int(decisions.detected.sum()),
        model=request.model_name,
        settings=request.settings(),
        inputs={
            name: InputFile(target.name_series(str(path)), file_sha256(path), **series.get(name, {}))
            for name, path in scan.files.items()
        },
        missing_modalities=list(request.inputs.missing(scan.files)),
        warnings=warned,
        study=UNSET if scan.study is None else scan.study.record,
        seconds=seconds,
    )


def _display_data(scan: ReadScan, slices: EngineSlices, request: SegmentRequest) -> DisplayData:
    engine = request.engine
    shown = tuple(name for name in engine.scored_modalities if name in slices.modalities)
    return DisplayData(
        pixels=slices.channels(shown).pixels.astype(np.float16),
        indices=slices.indices,
        pixel_mm=scan.planes.pixel_mm,
        modalities=shown,
        rules=engine.rules,
        space=scan.slice_space,
    )
