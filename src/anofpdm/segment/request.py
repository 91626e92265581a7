"""A segmentation request: engine, modalities, explanation and all other options, resolved once against a model.

The command line, the server, the demo and `Model.segment` all obtain it from `Model.request`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from anofpdm import __version__
from anofpdm.errors import ConfigError, ModelError
from anofpdm.method.decision import OURS
from anofpdm.method.many_slices import batch_for
from anofpdm.options import Detector, Engine, Threshold, parse
from anofpdm.report.explanation import Explain, normalize_explain
from anofpdm.segment.engines import DiffusionEngine, SegmentEngine, StudentEngine
from anofpdm.segment.scan_input import BrainSource

if TYPE_CHECKING:
    from anofpdm.segment.model import Model

EXPLAINER_SETTINGS = ("calibration_sha256", "precision", "seed")  # recorded beside those of the student
NOT_FOR_STUDENTS = ("detector", "threshold", "context", "peak", "smallest")


class SegmentOptions(TypedDict, total=False):
    """Options as the user gives them, named as on the command line. Absent or None: the model's default."""

    engine: Engine | str
    explain: Explain  # student engine: slices for which the report shows the diffusion model's curves
    detector: Detector | str | None
    threshold: Threshold | str | None
    context: float | None  # smoothing across slices, sigma in mm
    peak: float | None  # fraction of a slice's maximum that its mask must reach
    smallest: int | None  # components of at most this many pixels are removed
    seed: int | None  # noise seed
    batch: int | None  # slices per batch
    brain_mask: str | Path | None
    skull_strip: str | None  # command with {input} and {output}


@dataclass(frozen=True)
class SegmentRequest:
    engine: SegmentEngine
    model_sha256: str
    brain: BrainSource
    explain: Explain = None
    explainer: DiffusionEngine | None = None  # given together with `explain`

    @property
    def modalities(self) -> tuple[str, ...]:
        """Modalities that a scan must have."""
        return (self.explainer or self.engine).modalities

    def settings(self) -> dict[str, Any]:
        """Everything but the scan that determines the result. Results are comparable only where these are equal."""
        settings = {
            "anofpdm": __version__,
            "torch": torch.__version__,
            "engine": self.engine.name,
            "model_sha256": self.model_sha256,
            "brain_mask": self.brain.description(),
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
    if _resolve_engine(model, wanted) is Engine.DIFFUSION:
        if explain is not None and wanted is Engine.DIFFUSION:
            raise ConfigError("--explain: the diffusion engine explains every slice anyway; omit it")
        return SegmentRequest(_diffusion_engine(model, options), model.trained.sha256, brain)
    refused = NOT_FOR_STUDENTS if explain is not None else (*NOT_FOR_STUDENTS, "seed")  # of the explanation's noise
    unused = ", ".join(f"--{name}" for name in refused if options.get(name) is not None)
    if unused:
        raise ConfigError(f"{unused}: not an option of the student engine; add --engine diffusion, or omit it")
    assert model.student is not None
    explainer = None if explain is None else _diffusion_engine(model, options)
    return SegmentRequest(StudentEngine(model.student), model.trained.sha256, brain, explain, explainer)


def _resolve_engine(model: "Model", wanted: Engine) -> Engine:
    if wanted is not Engine.DIFFUSION and model.student_problem:
        raise ModelError(f"{model.student_problem}; or add --engine diffusion")
    if wanted is Engine.STUDENT and model.student is None:
        raise ConfigError(f"{model.trained.folder} has no student; train one with `anofpdm distill`")
    if wanted is not Engine.AUTO:
        return wanted
    return Engine.DIFFUSION if model.student is None else Engine.STUDENT


def _diffusion_engine(model: "Model", options: SegmentOptions) -> DiffusionEngine:
    """With the calibrated defaults where no option is given."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    mask_options = {"threshold": "threshold", "peak": "peak_share", "smallest": "smallest"}
    decision = replace(
        OURS,
        detector=given.get("detector", OURS.detector),
        context_mm=given.get("context", model.calibration.context_mm),
        mask=replace(OURS.mask, **{field: given[name] for name, field in mask_options.items() if name in given}),
    )
    seed, batch = given.get("seed", model.calibration.seed), given.get("batch") or batch_for(model.trained.device)
    return DiffusionEngine(model.trained, model.calibration, model.calibration_sha256, decision, seed, batch)
