"""One scan from its files to its result: read, cut into slices, decide on each, write back to the grid of the scan."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from anofpdm.choices import Raw
from anofpdm.raw.cache import StudyCache
from anofpdm.report.display import DisplayData
from anofpdm.scans.findings import find_lesions
from anofpdm.segment.engines import DiffusionEngine, EngineSlices, decide_where_it_fits
from anofpdm.segment.explanation import explain, rows_to_explain
from anofpdm.segment.inputs import Target
from anofpdm.segment.outputs import MISSING_MODALITIES
from anofpdm.segment.read import ReadScan, read
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.result import Segmentation, slice_table
from anofpdm.segment.scan_checks import RecordedWarnings, check_scan
from anofpdm.util.files import file_sha256
from anofpdm.util.progress import Progress, portion

STUDENT_PORTION = 0.1  # of the time, where the diffusion model explains slices afterwards
PREPARATION_PORTION = 0.8  # of the time, where a raw study is prepared first


def segment_scan(target: Target, request: SegmentRequest, progress: Progress, cache: StudyCache) -> Segmentation:
    """`target` is open: its images are NIfTI files, also where it is DICOM."""
    start, warned, request = time.perf_counter(), RecordedWarnings(), request_for(target, request)
    preparing = portion(progress, 0, PREPARATION_PORTION)
    with warned.record():
        cache = replace(cache, progress=preparing, brains={**cache.brains, **target.brains})
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
        if request.explainer is not None:
            rows = rows_to_explain(request.explain, findings, slices.indices, scan.slice_space, scan.where)
            rest = portion(progress, STUDENT_PORTION, 1 - STUDENT_PORTION)
            decisions = explain(decisions, slices, rows, request.explainer, rest)
    if warned.contradicted:  # an estimate from the probabilities would be too high
        decisions = replace(decisions, estimated_dice=None)
    summary = _summary(target, scan, request, warned.texts)
    return Segmentation(
        mask=mask,
        anomaly_map=anomaly_map,
        grid=scan.grid,
        slices=slice_table(decisions, slices.indices, scan.planes.pixel_mm),
        findings=findings,
        decisions=decisions,
        summary={**summary, "seconds": round(time.perf_counter() - start, 2)},
        display=_display_data(scan, slices, request),
        series=() if scan.study is None else scan.study.series,
        pictures={} if scan.study is None else scan.study.pictures,
    )


def request_for(target: Target, request: SegmentRequest) -> SegmentRequest:
    """DICOM series may have one grid but different frames of reference: the patient may have moved."""
    if target.study is None or target.study.on_one_grid or request.raw is Raw.NEVER:
        return request
    return replace(request, raw=Raw.ALWAYS)


def _summary(target: Target, scan: ReadScan, request: SegmentRequest, warnings: list[str]) -> dict[str, Any]:
    """Of DICOM, with the series of the study instead of temporary files."""
    series = {} if target.study is None else target.study.to_dict()
    return {
        "model": request.model_name,
        "settings": request.settings(),
        "inputs": {
            name: {"file": target.name_series(str(path)), "sha256": file_sha256(path), **series.get(name, {})}
            for name, path in scan.files.items()
        },
        MISSING_MODALITIES: list(request.inputs.missing(scan.files)),
        "warnings": [target.name_series(text) for text in warnings],
        **({} if scan.study is None else {"study": scan.study.record}),
    }


def _display_data(scan: ReadScan, slices: EngineSlices, request: SegmentRequest) -> DisplayData:
    engine = request.engine
    shown = tuple(name for name in engine.scored_modalities if name in slices.modalities)
    return DisplayData(
        pixels=slices.channels(shown).pixels.astype(np.float16),
        indices=slices.indices,
        pixel_mm=scan.planes.pixel_mm,
        modalities=shown,
        cosine_cut=engine.calibration.cut if isinstance(engine, DiffusionEngine) else float("nan"),
        healthy_level=engine.healthy_level,
        engine=engine.name,
        space=scan.slice_space,
    )
