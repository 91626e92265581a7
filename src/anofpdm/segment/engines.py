"""The engines that decide on the slices of a scan, and the request that selects one.

Both engines have the same properties and methods. A request is engine, modalities, explanation and all other options,
resolved once against a model: command line, server, demo and `Model.segment` obtain it from `Model.request`.
"""

import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.errors import ConfigError, ModelError
from anofpdm.method.calibration import Calibration
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, Decisions, DecisionSettings, decide, fit_for
from anofpdm.method.evidence import concatenate
from anofpdm.method.gather import EvidenceRequest, batch_for, evidence_batches, slice_seeds
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.options import Detector, Engine, Raw, Threshold, parse
from anofpdm.report.display import Curves
from anofpdm.scans.modalities import InputModalities
from anofpdm.segment.explanation import Explain, add_evidence, normalize_explain
from anofpdm.segment.scan_input import BrainSource
from anofpdm.student.decide import MaskChoices
from anofpdm.student.student import Student
from anofpdm.util.artifacts import to_plain
from anofpdm.util.progress import Progress

if TYPE_CHECKING:
    from anofpdm.segment.model import Model

TASK = "Segmenting"
EXPLAINER_SETTINGS = ("calibration_sha256", "precision", "seed")  # recorded beside those of the student
NOT_FOR_STUDENTS = ("detector", "threshold", "context", "peak")


@dataclass(frozen=True)
class EngineSlices:
    """Slices of one scan, the input of an engine."""

    pixels: np.ndarray  # [n, C, H, W] in [-1, 1], channels in the order of the engine's modalities
    indices: np.ndarray  # [n], counted from the inferior end of the scan
    spacing_mm: float  # between neighbouring indices

    @property
    def positions(self) -> SlicePositions:
        return SlicePositions(np.zeros(len(self.indices)), self.indices * self.spacing_mm)


@dataclass(frozen=True)
class DiffusionEngine:
    """The method of the paper: evidence gathered over the noise levels, then detection and mask."""

    trained: TrainedModel
    calibration: Calibration
    calibration_sha256: str
    decision: DecisionSettings
    seed: int
    batch: int
    name: ClassVar = Engine.DIFFUSION
    optional: ClassVar[tuple[str, ...]] = ()  # modalities that a scan may lack
    neighbours_mm: ClassVar[tuple[float, ...]] = ()  # offsets of slices that the network takes as further channels

    def __post_init__(self) -> None:
        fit_for(self.calibration, self.decision)  # raises where the calibration has no such fit

    @property
    def device(self) -> torch.device:
        return self.trained.device

    def on_cpu(self) -> Self:
        """Loaded again: weights on a GPU have been rounded."""
        device = torch.device("cpu")
        trained = load_trained(self.trained.folder, device)
        return replace(self, trained=trained, batch=min(self.batch, batch_for(device)))

    @property
    def modalities(self) -> tuple[str, ...]:
        """In the order of the channels."""
        return self.trained.modalities

    @property
    def scored_modalities(self) -> tuple[str, ...]:
        """Modalities that the decision is based on; the report shows these."""
        return tuple(self.modalities[channel] for channel in self.calibration.settings.channels)

    @property
    def healthy_level(self) -> float:
        """Value of the anomaly map that nearly all pixels of healthy slices stay below."""
        return fit_for(self.calibration, self.decision).healthy_threshold or 0.0

    def decide(self, slices: EngineSlices, progress: Progress) -> tuple[Decisions, Curves | None]:
        """Detect and mask each slice; with the curves that explain it, where the engine has any."""
        calibration, seeds = self.calibration, slice_seeds(slices.indices, self.seed)
        request = EvidenceRequest(calibration.settings, [calibration.strength], self.trained.device, self.batch)
        request = request.in_even_batches(len(seeds))
        batches = evidence_batches(self.trained.predict, lambda rows: slices.pixels[rows], seeds, request, progress)
        evidence = concatenate(batches)
        decisions = decide(evidence, calibration, self.decision, slices.positions)
        return decisions, Curves.from_evidence(evidence)

    def explain(
        self, decisions: Decisions, slices: EngineSlices, rows: np.ndarray, progress: Progress
    ) -> tuple[Decisions, Curves | None]:
        """A student's decisions with this engine's evidence added for some rows of the slices, and its curves."""
        if not len(rows):
            return decisions, None
        own, curves = self.decide(replace(slices, pixels=slices.pixels[rows], indices=slices.indices[rows]), progress)
        assert curves is not None
        return add_evidence(decisions, rows, own), curves.expand(rows, len(slices.indices))

    def settings(self) -> dict[str, Any]:
        """Everything that determines the result, for summary.json."""
        calibration, detector = self.calibration, self.decision.detector
        return {
            "calibration_sha256": self.calibration_sha256,
            "precision": self.trained.predict.precision,
            "strength": calibration.strength,
            "strength_by": calibration.strength_by,
            "signal": calibration.settings.signal,
            "gradient_share": calibration.settings.gradient_share,
            "detector": calibration.detector if detector == Detector.CALIBRATED else detector,
            "scored": list(self.scored_modalities),
            "levels": len(calibration.settings.levels),
            "highest_level": calibration.settings.levels[-1],
            "decision": asdict(self.decision),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class StudentEngine:
    """A small network trained on masks of the diffusion engine: one forward pass per slice, and no curves."""

    student: Student
    name: ClassVar = Engine.STUDENT
    healthy_level: ClassVar = 0.5

    @property
    def device(self) -> torch.device:
        return self.student.device

    def on_cpu(self) -> Self:
        device = torch.device("cpu")
        network = copy.deepcopy(self.student.network).to(device)
        return replace(self, student=replace(self.student, network=network, device=device))

    @property
    def modalities(self) -> tuple[str, ...]:
        return self.student.config.modalities

    @property
    def optional(self) -> tuple[str, ...]:
        return self.student.config.optional

    @property
    def scored_modalities(self) -> tuple[str, ...]:
        return self.modalities

    @property
    def neighbours_mm(self) -> tuple[float, ...]:
        return self.student.config.neighbours_mm

    def decide(self, slices: EngineSlices, progress: Progress) -> tuple[Decisions, Curves | None]:
        return self.student.decide(lambda rows: slices.pixels[rows], slices.positions, progress), None

    def settings(self) -> dict[str, Any]:
        calibration = to_plain(self.student.calibration)
        return {"student_sha256": self.student.sha256, "student": calibration, **self.student.choices.settings()}


class SegmentOptions(TypedDict, total=False):
    """Options as the user gives them, named as on the command line. Absent or None: the model's default."""

    engine: Engine | str
    explain: Explain  # student engine: slices for which the report shows the diffusion model's curves
    detector: Detector | str | None
    threshold: Threshold | str | None
    context: float | None  # smoothing across slices, sigma in mm
    peak: float | None  # fraction of a slice's maximum that its mask must reach
    threshold_probability: float | None  # student engine: pixels of at least this probability are lesion
    smallest: int | None  # components of at most this many pixels (of 128 x 128) are removed
    seed: int | None  # noise seed
    batch: int | None  # slices per batch
    brain_mask: str | Path | None
    skull_strip: str | None  # command with {input} and {output}
    raw: Raw | str | None  # whether series are registered and stripped first; default: never
    trust_header: bool  # segment also what has a size that no head has


@dataclass(frozen=True)
class SegmentRequest:
    engine: DiffusionEngine | StudentEngine
    model_sha256: str
    brain: BrainSource
    explain: Explain = None
    explainer: DiffusionEngine | None = None  # given together with `explain`
    raw: Raw = Raw.NEVER
    advice: str = ""  # for messages on a missing modality
    trust_header: bool = False

    @property
    def inputs(self) -> InputModalities:
        """Modalities that a scan must have, and those that it may lack."""
        engine = self.explainer or self.engine
        needed = tuple(name for name in engine.modalities if name not in engine.optional)
        return InputModalities(needed, engine.optional, self.advice)

    @property
    def modalities(self) -> tuple[str, ...]:
        """All of them; those that a scan must have first."""
        return self.inputs.names

    def settings(self) -> dict[str, Any]:
        """Everything but the scan that determines the result. Results are comparable only where these are equal."""
        settings = {
            "anofpdm": __version__,
            "torch": torch.__version__,
            "engine": self.engine.name,
            "model_sha256": self.model_sha256,
            "brain_mask": self.brain.description(),
            "raw": self.raw,
            **({"trust_header": True} if self.trust_header else {}),
            **self.engine.settings(),
        }
        if self.explainer is None:
            return settings
        explained = self.explain if isinstance(self.explain, str) else list(self.explain or ())
        used = self.explainer.settings()
        return {**settings, "explained": explained, **{name: used[name] for name in EXPLAINER_SETTINGS}}


def resolve_request(model: "Model", options: SegmentOptions) -> SegmentRequest:
    """Raises ConfigError for options that exclude each other, ModelError for a student that cannot be used."""
    wanted = parse(Engine, options.get("engine") or Engine.AUTO)
    explain = normalize_explain(options.get("explain"))
    brain = BrainSource(options.get("brain_mask"), options.get("skull_strip"))
    raw, trust = parse(Raw, options.get("raw") or Raw.NEVER), bool(options.get("trust_header"))
    if _resolve_engine(model, wanted) is Engine.DIFFUSION:
        if explain is not None and wanted is Engine.DIFFUSION:
            raise ConfigError("--explain: the diffusion engine explains every slice anyway; omit it")
        if options.get("threshold_probability") is not None:
            raise ConfigError("--threshold-probability: not an option of the diffusion engine; use --threshold")
        advice = _advise(model, "the diffusion engine", "--engine student")
        diffusion = _diffusion_engine(model, options)
        return SegmentRequest(diffusion, model.sha256, brain, raw=raw, advice=advice, trust_header=trust)
    refused = NOT_FOR_STUDENTS if explain is not None else (*NOT_FOR_STUDENTS, "seed")  # of the explanation's noise
    unused = ", ".join(f"--{name}" for name in refused if options.get(name) is not None)
    if unused:
        raise ConfigError(f"{unused}: not an option of the student engine; add --engine diffusion, or omit it")
    explainer = None if explain is None else _diffusion_engine(model, options)
    advice = "" if explain is None else _advise(model, "--explain", "the student alone")
    engine = _student_engine(model, options)
    return SegmentRequest(engine, model.sha256, brain, explain, explainer, raw, advice, trust)


def _advise(model: "Model", what: str, instead: str) -> str:
    """Where a modality is missing that only the diffusion model needs."""
    needed = model.student.config.needed if model.student else ()
    if not needed or set(model.modalities) <= set(needed):
        return ""
    return f"{what} needs every modality that the diffusion model was trained with; {instead} needs {', '.join(needed)}"


def _resolve_engine(model: "Model", wanted: Engine) -> Engine:
    if wanted is not Engine.DIFFUSION and model.student_problem:
        raise ModelError(f"{model.student_problem}; or add --engine diffusion")
    if wanted is Engine.STUDENT and model.student is None:
        raise ConfigError(f"{model.folder} has no student; train one with `anofpdm distill`")
    if wanted is not Engine.AUTO:
        return wanted
    return Engine.DIFFUSION if model.student is None else Engine.STUDENT


def _student_engine(model: "Model", options: SegmentOptions) -> StudentEngine:
    assert model.student is not None
    choices = MaskChoices(options.get("threshold_probability"), options.get("smallest"))
    return StudentEngine(replace(model.student, choices=choices) if choices.settings() else model.student)


def _diffusion_engine(model: "Model", options: SegmentOptions) -> DiffusionEngine:
    """With the calibrated defaults where no option is given."""
    trained, calibration = model.diffusion
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    mask_options = {"threshold": "threshold", "peak": "peak_share", "smallest": "smallest"}
    decision = replace(
        OURS,
        detector=given.get("detector", OURS.detector),
        context_mm=given.get("context", calibration.context_mm),
        mask=replace(OURS.mask, **{field: given[name] for name, field in mask_options.items() if name in given}),
    )
    seed, batch = given.get("seed", calibration.seed), given.get("batch") or batch_for(trained.device)
    return DiffusionEngine(trained, calibration, model.calibration_sha256, decision, seed, batch)
