"""Load a model and segment a scan. The file to read first.

segment_scan.py is the way of a scan in one function: its files are read (a raw study is registered and stripped first)
and cut into axial slices. An engine (engines.py) decides on each slice:

 -  DiffusionEngine, the method of the paper. The diffusion model was trained with one label per slice, healthy or
    unhealthy. Each slice is noised level by level; at each level the model estimates the noise-free slice twice, once
    guided towards "healthy" and once unguided (method/guidance.py, collected by method/gather.py). How far the two
    estimates diverge over the levels shows whether the slice has a lesion (method/detection.py); where the slice
    differs from the guided estimate shows the lesion (method/mask.py).
 -  StudentEngine, a small network trained on such masks (student/). It needs one forward pass per slice.

Anomaly map and mask are then resampled to the grid of the scan and its connected components listed as findings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch

from anofpdm.calibration.calibration_file import load_calibration
from anofpdm.choices import Detector, Engine, Precision, Raw, Threshold, parse
from anofpdm.errors import ConfigError, ModelError
from anofpdm.method.decision import OURS
from anofpdm.method.gather import batch_for
from anofpdm.models.registry import model_folder
from anofpdm.network.checkpoint import WEIGHTS
from anofpdm.network.predictor import load_trained
from anofpdm.raw.cache import StudyCache
from anofpdm.segment.brain_source import BrainSource
from anofpdm.segment.engines import Diffusion, DiffusionEngine, StudentEngine
from anofpdm.segment.inputs import GivenScan, find_scan
from anofpdm.segment.request import Explain, KnownScans, SegmentOptions, SegmentRequest
from anofpdm.segment.result import Segmentation
from anofpdm.segment.segment_scan import segment_scan
from anofpdm.student.decide import MaskChoices
from anofpdm.student.student import Student, load_student
from anofpdm.util.distributed import resolve_device
from anofpdm.util.progress import Progress, silent

NOT_FOR_STUDENTS = ("detector", "threshold", "context", "peak")


def load(folder: str | Path, device: str | torch.device = "auto", precision: str = Precision.AUTO) -> "Model":
    """A trained and calibrated model, with its student if it has one: a folder, or the name of a model that ships."""
    path, where = model_folder(folder), resolve_device(device)
    if not (path / WEIGHTS).is_file() and (student := load_student(path, None, where)):
        return Model(None, student, path)
    network = load_trained(path, where, precision)
    diffusion = Diffusion(network, *load_calibration(network))
    try:
        return Model(diffusion, load_student(network.folder, network.sha256, network.device), path)
    except ModelError as error:  # the diffusion engine still works
        return Model(diffusion, None, path, str(error))


@dataclass(frozen=True)
class Model:
    """A diffusion model with its calibration, a student, or both."""

    diffusion: Diffusion | None
    student: Student | None
    folder: Path = Path()
    student_problem: str = ""  # why the student in the folder cannot be used

    @property
    def name(self) -> str:
        """Of its folder, for messages and summaries; empty if it has none."""
        return "" if self.folder == Path() else self.folder.resolve().name

    @property
    def modalities(self) -> tuple[str, ...]:
        """Of all its engines."""
        return self.scans.modalities

    @property
    def size(self) -> int:
        """Slices are size x size."""
        return self.scans.size

    @property
    def sha256(self) -> str:
        """Of the diffusion model, also where only its student is left."""
        return self.diffusion.network.sha256 if self.diffusion else self._student.teacher_sha256

    @property
    def scans(self) -> KnownScans:
        """The scans that it was made for."""
        typical = self.student.typical if self.student else None
        if self.diffusion:
            network, calibration = self.diffusion.network, self.diffusion.calibration
            return KnownScans(network.modalities, network.size, network.expects, calibration.foreground, typical)
        student, config = self._student, self._student.config
        return KnownScans(config.modalities, config.size, student.expects, student.foreground, typical)

    @property
    def _student(self) -> Student:
        if self.student is None:
            raise ConfigError(f"{self.folder} has no student; train one with `anofpdm distill`")
        return self.student

    def segment(
        self,
        scan: GivenScan,
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
        if request is None:
            request = self.request(**options)
            if options.get("raw") is None and not isinstance(scan, Mapping):  # as on the command line
                request = replace(request, raw=Raw.AUTO)
        cache = raw_run or StudyCache()
        with find_scan(scan, request.inputs, request.raw).open() as target:
            for note in target.notes:
                cache.report(note)
            return segment_scan(target, request, progress, cache)

    def request(self, **options: Unpack[SegmentOptions]) -> SegmentRequest:
        """The options with all defaults of this model resolved; for many scans, do it once.

        Raises ConfigError for options that exclude each other, ModelError for a student that cannot be used.
        """
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        choice, explain = parse(Engine, given.get("engine", Engine.AUTO)), _parse_explain(given.get("explain"))
        if choice is not Engine.DIFFUSION and self.student_problem:
            raise ModelError(f"{self.student_problem}; or add --engine diffusion")
        engine: DiffusionEngine | StudentEngine
        explainer, advice = None, ""
        if choice is Engine.DIFFUSION or (choice is Engine.AUTO and self.student is None):
            if explain is not None and choice is Engine.DIFFUSION:
                raise ConfigError("--explain: the diffusion engine explains every slice anyway; omit it")
            if "threshold_probability" in given:
                raise ConfigError("--threshold-probability: not an option of the diffusion engine; use --threshold")
            engine, advice = self._diffusion_engine(given), self._advise("the diffusion engine", "--engine student")
        else:
            engine = self._student_engine(given)
            if explain is not None:
                explainer, advice = self._diffusion_engine(given), self._advise("--explain", "the student alone")
        mask = given.get("brain_mask")
        return SegmentRequest(
            engine=engine,
            model_name=self.name,
            model_sha256=self.sha256,
            scans=self.scans,
            brain=BrainSource(None if mask is None else Path(mask), given.get("skull_strip")),
            explain=explain if explainer else None,
            explainer=explainer,
            raw=parse(Raw, given.get("raw", Raw.NEVER)),
            advice=advice,
            trust_header=bool(given.get("trust_header")),
        )

    def _student_engine(self, given: dict[str, Any]) -> StudentEngine:
        refused = NOT_FOR_STUDENTS if "explain" in given else (*NOT_FOR_STUDENTS, "seed")  # of the explanation's noise
        if unused := ", ".join(f"--{name}" for name in refused if name in given):
            raise ConfigError(f"{unused}: not an option of the student engine; add --engine diffusion, or omit it")
        choices = MaskChoices(given.get("threshold_probability"), given.get("smallest"))
        return StudentEngine(replace(self._student, choices=choices))

    def _diffusion_engine(self, given: dict[str, Any]) -> DiffusionEngine:
        """With the calibrated defaults where no option is given."""
        if self.diffusion is None:
            raise ModelError(
                f"{self.folder}: has a student only; --engine diffusion and --explain need its diffusion model, which "
                "was left out"
            )
        calibration, mask = self.diffusion.calibration, OURS.mask
        decision = replace(
            OURS,
            detector=parse(Detector, given.get("detector", OURS.detector)),
            context_mm=given.get("context", calibration.context_mm),
            mask=replace(
                mask,
                threshold=parse(Threshold, given.get("threshold", mask.threshold)),
                peak_share=given.get("peak", mask.peak_share),
                smallest=given.get("smallest", mask.smallest),
            ),
        )
        batch = given.get("batch") or batch_for(self.diffusion.network.device)
        return DiffusionEngine(self.diffusion, decision, given.get("seed", calibration.seed), batch)

    def _advise(self, what: str, instead: str) -> str:
        """Where a modality is missing that only the diffusion model needs."""
        needed = self.student.config.needed if self.student else ()
        if not needed or set(self.modalities) <= set(needed):
            return ""
        names = ", ".join(needed)
        return f"{what} needs every modality that the diffusion model was trained with; {instead} needs {names}"

    def __repr__(self) -> str:
        """Name and folder, modalities, engines."""
        parts = {"student": self.student, "diffusion": self.diffusion}
        engines = ", ".join(name for name, part in parts.items() if part is not None)
        damaged = " (the student is damaged or outdated)" if self.student_problem else ""
        return (
            f"AnoFPDM model {self.folder.resolve().name}: {self.folder}\nmodalities: {self._describe_modalities()}\n"
            f"engines: {engines}{damaged}; slices of {self.size} x {self.size} pixels"
        )

    def _describe_modalities(self) -> str:
        if self.student is None:
            return f"{', '.join(self.modalities).upper()} needed"
        config = self.student.config
        text = f"{', '.join(config.needed).upper()} needed"
        if config.optional:
            text += f", {', '.join(config.optional).upper()} optional"
        if self.diffusion is not None and set(config.needed) != set(self.modalities):
            text += f" (diffusion engine: {', '.join(self.modalities).upper()} needed)"
        return text


def _parse_explain(explain: Explain) -> Explain:
    """Slice numbers sorted, without duplicates."""
    if explain is None:
        return None
    if isinstance(explain, str):
        if explain != "findings":
            raise ConfigError(f"explain {explain!r}: give 'findings' or a list of slice numbers")
        return "findings"
    return tuple(sorted({int(number) for number in explain}))
