"""Load a model and segment a scan. The file to read first.

A scan is cut into axial slices. An engine (engines.py) decides on each slice:

 -  DiffusionEngine, the method of the paper. The diffusion model was trained with one label per slice, healthy or
    unhealthy. Each slice is noised level by level; at each level the model estimates the noise-free slice twice, once
    guided towards "healthy" and once unguided (method/guidance.py, collected by method/gather.py). How far the two
    estimates diverge over the levels shows whether the slice has a lesion (method/detection.py); where the slice
    differs from the guided estimate shows the lesion (method/mask.py).
 -  StudentEngine, a small network trained on such masks (student/). It needs one forward pass per slice.

Anomaly map and mask are then resampled to the grid of the scan and its connected components listed as findings.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from anofpdm.calibration.calibration_file import load_calibration
from anofpdm.errors import ConfigError, ModelError, ScanError
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import Decisions
from anofpdm.models.registry import model_folder
from anofpdm.network.checkpoint import WEIGHTS
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.options import Precision, Raw
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.study import Study
from anofpdm.report.display import Curves, DisplayData, SliceSpace
from anofpdm.scans import AxialPlanes, Grid, Scan, scan_slices
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.findings import find_lesions
from anofpdm.segment.description import describe_model
from anofpdm.segment.engines import DiffusionEngine, EngineSlices, SegmentOptions, SegmentRequest, resolve_request
from anofpdm.segment.explanation import rows_to_explain, warn_missing_slices
from anofpdm.segment.fallback import use_engine
from anofpdm.segment.one_scan import Files, Source, lowercase_names, segment_source
from anofpdm.segment.outputs import MISSING_MODALITIES
from anofpdm.segment.raw_input import read_input
from anofpdm.segment.result import Segmentation, slice_table
from anofpdm.segment.scan_checks import (
    check_kind,
    check_names,
    check_parts,
    check_shape,
    warn_large_lesion,
    warn_unusual_spacing,
    without_estimate,
)
from anofpdm.segment.scan_input import RecordedWarnings, file_sha256
from anofpdm.student.student import Student, load_student
from anofpdm.student.student_network import fill_missing
from anofpdm.util.distributed import resolve_device
from anofpdm.util.progress import Progress, portion, silent

STUDENT_PORTION = 0.1  # of the time, where the diffusion model explains slices afterwards
PREPARATION_PORTION = 0.8  # of the time, where a raw study is prepared first


def load(folder: str | Path, device: str | torch.device = "auto", precision: str = Precision.AUTO) -> "Model":
    """A trained and calibrated model, with its student if it has one: a folder, or the name of a model that ships."""
    path, where = model_folder(folder), resolve_device(device)
    if not (path / WEIGHTS).is_file() and (student := load_student(path, None, where)):
        return Model(None, None, "", student, folder=path)
    trained = load_trained(path, where, precision)
    calibration, digest = load_calibration(trained)
    try:
        student, problem = load_student(trained.folder, trained.sha256, trained.device), ""
    except ModelError as error:
        student, problem = None, str(error)  # the diffusion engine still works
    return Model(trained, calibration, digest, student, problem, path)


@dataclass(frozen=True)
class Model:
    """A diffusion model with its calibration, a student, or both."""

    trained: TrainedModel | None
    calibration: Calibration | None
    calibration_sha256: str
    student: Student | None = None
    student_problem: str = ""  # why the student in the folder cannot be used
    folder: Path = Path()

    def __repr__(self) -> str:
        return describe_model(self)

    @property
    def diffusion(self) -> tuple[TrainedModel, Calibration]:
        if self.trained is None or self.calibration is None:
            raise ModelError(
                f"{self.folder}: has a student only; --engine diffusion and --explain need its diffusion model, which "
                "was left out"
            )
        return self.trained, self.calibration

    @property
    def name(self) -> str:
        """Of its folder, for messages and summaries; empty if it has none."""
        return "" if self.folder == Path() else self.folder.resolve().name

    @property
    def modalities(self) -> tuple[str, ...]:
        """Of all its engines."""
        return self.trained.modalities if self.trained else self._only_student.config.modalities

    @property
    def size(self) -> int:
        """Slices are size x size."""
        return self.trained.size if self.trained else self._only_student.config.size

    @property
    def sha256(self) -> str:
        """Of the diffusion model, also where only its student is left."""
        return self.trained.sha256 if self.trained else self._only_student.teacher_sha256

    @property
    def expects(self) -> ScanExpectation:
        return self.trained.expects if self.trained else self._only_student.expects or ScanExpectation()

    @property
    def foreground(self) -> tuple[float, float]:
        """Smallest and largest fraction of foreground among the scans in calibration."""
        return self.calibration.foreground if self.calibration else self._only_student.foreground or (0.0, 1.0)

    @property
    def _only_student(self) -> Student:
        assert self.student is not None
        return self.student

    def request(self, **options: Unpack[SegmentOptions]) -> SegmentRequest:
        """The options with all defaults of this model resolved; for many scans, do it once."""
        return resolve_request(self, options)

    def segment(
        self,
        scan: Files | Source,
        *,
        request: SegmentRequest | None = None,  # instead of options
        progress: Progress = silent,
        raw_run: StudyCache | None = None,  # where a raw study's preparation is kept
        **options: Unpack[SegmentOptions],
    ) -> Segmentation:
        """Segment one scan.

        `scan` is a mapping from modality to NIfTI file, `{"flair": path, "t2": path}`, in upper or lower case; or what
        `anofpdm segment` takes: one path or several, of NIfTI files, a folder in any supported layout, or DICOM (a
        folder or zip). The options, by default those of the model:

        - engine: "auto" (the student if there is one), "student" or "diffusion"
        - threshold_probability: lesion probability from which a pixel belongs to a student's mask, between 0 and 1
        - smallest: components of at most this many pixels (of 128 x 128) are dropped
        - explain: "findings" or slice numbers, where a student's report shows the curves of the diffusion model
        - raw: "auto", "always" or "never" register and skull-strip series; "never" by default for a mapping
        - brain_mask, skull_strip: file of a brain mask, or a command that contains {input} and {output}
        - trust_header: segment also a scan whose size in its header no head has
        - detector, threshold, context, peak, seed, batch: of the diffusion engine, as in `anofpdm segment --help`

        Returns mask, anomaly_map, findings, slices, volume_ml, estimated_dice, summary; `save(folder)` writes them.
        """
        if request is not None and options:
            raise ConfigError(f"{', '.join(options)}: has no effect beside request=; pass it to Model.request")
        as_command = request is None and options.get("raw") is None
        request = request or self.request(**options)
        if not isinstance(scan, Mapping):
            request = replace(request, raw=Raw.AUTO) if as_command else request
            return segment_source(self, scan, request, progress, raw_run)
        return self._segment_files(lowercase_names(scan), request, progress, raw_run)

    def _segment_files(
        self, files: Files, request: SegmentRequest, progress: Progress, raw_run: StudyCache | None
    ) -> Segmentation:
        start = time.perf_counter()
        warned = RecordedWarnings()
        with warned.record():
            scan, study = self._read(files, request, raw_run, progress)
            planes = AxialPlanes(scan.grid, self.size)
            slices = self._checked_slices(scan, planes, request, files, study)
            progress = _after_preparation(progress, study)
            decisions, curves = _decide(slices, request, progress)
            native = [planes.to_native(one, slices.indices) for one in (decisions.maps, decisions.outlines)]
            grid, (anomaly_map, mask) = _in_place(study, scan, *native)
            mask, space = mask >= 0.5, _slice_space(study, scan)
            findings = find_lesions(mask, anomaly_map, grid.affine)
            warn_large_lesion(findings, scan, study, files)
            if request.explainer is not None:
                rows = rows_to_explain(request.explain, findings, slices.indices, space)
                decisions, curves = _explain(decisions, slices, rows, request.explainer, progress)
        if warned.contradicted:
            decisions = without_estimate(decisions)
        return Segmentation(
            mask=mask,
            anomaly_map=anomaly_map,
            grid=grid,
            slices=slice_table(decisions, slices.indices, planes.pixel_mm),
            findings=findings,
            decisions=decisions,
            summary={"model": self.name, **_summary(files, scan, request, warned.texts, study, start)},
            display=self._display_data(request, scan, slices, curves, space),
            series=() if study is None else study.series,
            pictures={} if study is None else study.pictures,
        )

    def _read(
        self, files: Files, request: SegmentRequest, run: StudyCache | None, progress: Progress
    ) -> tuple[Scan, Study | None]:
        unknown = [name for name in files if name not in {*self.modalities, *request.modalities}]
        if unknown and request.inputs.optional:  # a misspelt optional modality would count as missing
            known = ", ".join(request.modalities)
            raise ScanError(f"{', '.join(unknown)}: not a modality of the model; choose from {known}")
        check_names({name: path for name, path in files.items() if name in request.modalities})
        run = replace(run or StudyCache(), progress=portion(progress, 0, PREPARATION_PORTION))
        return read_input(files, request, self.expects, self.foreground, run)

    def _checked_slices(
        self, scan: Scan, planes: AxialPlanes, request: SegmentRequest, files: Files, study: Study | None
    ) -> EngineSlices:
        where = files[scan.modalities[0]]
        check_shape(scan, where)
        slices = scan_slices(scan, self.size)
        spacing_mm = self.expects.nominal_slice_mm or planes.spacing_mm
        if not len(slices.indices):
            raise ScanError(f"{where}: no axial slice has enough foreground; is it a head scan?")
        check_parts(scan, study, where)
        check_kind(self, slices, scan, study, files)
        warn_unusual_spacing(spacing_mm, request.engine.neighbours_mm, where)
        warn_missing_slices(request.explain, slices.indices, where)
        pixels = fill_missing(slices.pixels, scan.modalities, request.modalities)
        return EngineSlices(pixels, slices.indices, spacing_mm)

    def _display_data(
        self, request: SegmentRequest, scan: Scan, slices: EngineSlices, curves: Curves | None, space: SliceSpace
    ) -> DisplayData:
        engine = request.engine
        shown = tuple(name for name in engine.scored_modalities if name in scan.modalities)
        return DisplayData(
            pixels=_select(slices, request, shown).pixels.astype(np.float16),
            indices=slices.indices,
            pixel_mm=AxialPlanes(scan.grid, self.size).pixel_mm,
            modalities=shown,
            cosine_cut=self.calibration.cut if self.calibration else float("nan"),
            healthy_level=engine.healthy_level,
            curves=curves,
            engine=engine.name,
            space=space,
        )


def _decide(slices: EngineSlices, request: SegmentRequest, progress: Progress) -> tuple[Decisions, Curves | None]:
    progress = progress if request.explainer is None else portion(progress, 0, STUDENT_PORTION)
    own = _select(slices, request, request.engine.modalities)
    return use_engine(request.engine, lambda engine: engine.decide(own, progress))


def _explain(
    decisions: Decisions, slices: EngineSlices, rows: np.ndarray, explainer: DiffusionEngine, progress: Progress
) -> tuple[Decisions, Curves | None]:
    rest = portion(progress, STUDENT_PORTION, 1 - STUDENT_PORTION)
    return use_engine(explainer, lambda engine: engine.explain(decisions, slices, rows, rest))


def _after_preparation(progress: Progress, study: Study | None) -> Progress:
    return progress if study is None else portion(progress, PREPARATION_PORTION, 1 - PREPARATION_PORTION)


def _summary(
    files: Files, scan: Scan, request: SegmentRequest, warnings: list[str], study: Study | None, start: float
) -> dict[str, Any]:
    return {
        "settings": request.settings(),
        "inputs": {name: {"file": str(files[name]), "sha256": file_sha256(files[name])} for name in scan.modalities},
        MISSING_MODALITIES: list(request.inputs.missing(scan.modalities)),
        "warnings": warnings,
        **({} if study is None else {"study": study.record}),
        "seconds": round(time.perf_counter() - start, 2),
    }


def _in_place(study: Study | None, scan: Scan, *volumes: np.ndarray) -> tuple[Grid, list[np.ndarray]]:
    """Volumes on the grid of the scan, brought to the reference's own grid where a raw study was prepared."""
    if study is None:
        return scan.grid, list(volumes)
    return study.reference.grid, [study.to_reference(volume) for volume in volumes]


def _slice_space(study: Study | None, scan: Scan) -> SliceSpace:
    return SliceSpace(scan.grid, np.eye(4) if study is None else study.reference_to_scan)


def _select(slices: EngineSlices, request: SegmentRequest, wanted: tuple[str, ...]) -> EngineSlices:
    if request.modalities == wanted:
        return slices
    return replace(slices, pixels=slices.pixels[:, [request.modalities.index(name) for name in wanted]])
