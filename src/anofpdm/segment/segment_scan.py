"""One scan through an engine: read, cut into slices, decide on each, write back to the grid of the scan."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.raw.cache import StudyCache
from anofpdm.report.display import DisplayData
from anofpdm.scans import scan_slices
from anofpdm.scans.findings import find_lesions
from anofpdm.segment.engines import DiffusionEngine, EngineSlices, decide_where_it_fits
from anofpdm.segment.explanation import explain, rows_to_explain, warn_missing_slices
from anofpdm.segment.outputs import MISSING_MODALITIES
from anofpdm.segment.read import read
from anofpdm.segment.read_scan import Files, ReadScan
from anofpdm.segment.recorded_warnings import RecordedWarnings
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.result import Segmentation, slice_table
from anofpdm.segment.scan_checks import check_slices, warn_large_lesion
from anofpdm.util.files import file_sha256
from anofpdm.util.progress import Progress, portion

STUDENT_PORTION = 0.1  # of the time, where the diffusion model explains slices afterwards
PREPARATION_PORTION = 0.8  # of the time, where a raw study is prepared first


def segment_files(files: Files, request: SegmentRequest, progress: Progress, run: StudyCache) -> Segmentation:
    """`files`: NIfTI, by modality in lower case."""
    start, warned = time.perf_counter(), RecordedWarnings()
    with warned.record():
        scan = read(files, request, replace(run, progress=portion(progress, 0, PREPARATION_PORTION)))
        slices = cut(scan, request)
        if scan.study is not None:
            progress = portion(progress, PREPARATION_PORTION, 1 - PREPARATION_PORTION)
        decisions = decide_where_it_fits(
            request.engine, slices, progress if request.explainer is None else portion(progress, 0, STUDENT_PORTION)
        )
        anomaly_map, outlines = (scan.to_grid(part, slices.indices) for part in (decisions.maps, decisions.outlines))
        mask = outlines >= 0.5
        findings = find_lesions(mask, anomaly_map, scan.grid.affine)
        warn_large_lesion(scan, findings)
        if request.explainer is not None:
            rows = rows_to_explain(request.explain, findings, slices.indices, scan.slice_space)
            rest = portion(progress, STUDENT_PORTION, 1 - STUDENT_PORTION)
            decisions = explain(decisions, slices, rows, request, rest)
    if warned.contradicted:  # an estimate from the probabilities would be too high
        decisions = replace(decisions, estimated_dice=None)
    return Segmentation(
        mask=mask,
        anomaly_map=anomaly_map,
        grid=scan.grid,
        slices=slice_table(decisions, slices.indices, scan.planes.pixel_mm),
        findings=findings,
        decisions=decisions,
        summary={**_summary(scan, request, warned.texts), "seconds": round(time.perf_counter() - start, 2)},
        display=_display_data(scan, slices, request),
        series=() if scan.study is None else scan.study.series,
        pictures={} if scan.study is None else scan.study.pictures,
    )


def cut(scan: ReadScan, request: SegmentRequest) -> EngineSlices:
    """Axial slices [n, C, size, size], with warnings where the mask may be wrong."""
    thin = [axis for axis in range(3) if scan.scan.grid.shape[axis] == 1]
    if thin and thin != [scan.scan.grid.axial_axis]:
        raise ScanError(f"{scan.where}: a single slice that is not axial; slices are segmented axially, give a 3D scan")
    network_input = scan_slices(scan.scan, scan.size)
    indices = network_input.indices
    if not len(indices):
        raise ScanError(f"{scan.where}: no axial slice has enough foreground; is it a head scan?")
    spacing_mm = request.scans.expects.nominal_slice_mm or scan.planes.spacing_mm
    slices = EngineSlices(network_input.pixels, scan.scan.modalities, indices, spacing_mm)
    check_slices(scan, slices, request)
    warn_missing_slices(request.explain, indices, scan.where)
    return slices


def _summary(scan: ReadScan, request: SegmentRequest, warnings: list[str]) -> dict[str, Any]:
    files = {name: scan.files[name] for name in scan.scan.modalities}
    return {
        "model": request.model_name,
        "settings": request.settings(),
        "inputs": {name: {"file": str(path), "sha256": file_sha256(path)} for name, path in files.items()},
        MISSING_MODALITIES: list(request.inputs.missing(files)),
        "warnings": warnings,
        **({} if scan.study is None else {"study": scan.study.record}),
    }


def _display_data(scan: ReadScan, slices: EngineSlices, request: SegmentRequest) -> DisplayData:
    engine, given = request.engine, scan.scan.modalities
    shown = tuple(name for name in engine.scored_modalities if name in given)
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
