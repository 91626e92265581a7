"""The engines that decide on the slices of a scan. Both have the same properties and methods."""

import copy
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch

from anofpdm.choices import Detector, Engine
from anofpdm.errors import NotEnoughMemoryError, ScanWarning
from anofpdm.method.calibration import Calibration
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import Decisions, DecisionSettings, decide, fit_for
from anofpdm.method.evidence import EvidenceRequest, concatenate
from anofpdm.method.gather import batch_for, evidence_batches, slice_seeds
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.report.display import DecisionRules
from anofpdm.student.student import Student
from anofpdm.student.student_network import fill_missing
from anofpdm.util.artifacts import to_plain
from anofpdm.util.progress import Progress

TASK = "Segmenting"


@dataclass(frozen=True)
class EngineSlices:
    """Slices of one scan, the input of an engine."""

    pixels: np.ndarray  # [n, C, H, W] in [-1, 1]
    modalities: tuple[str, ...]  # of the channels
    indices: np.ndarray  # [n], counted from the inferior end of the scan
    spacing_mm: float  # between neighbouring indices

    @property
    def positions(self) -> SlicePositions:
        return SlicePositions(np.zeros(len(self.indices)), self.indices * self.spacing_mm)

    def channels(self, modalities: tuple[str, ...]) -> Self:
        """Those of these modalities; of a modality that the scan lacks, background."""
        return replace(self, pixels=fill_missing(self.pixels, self.modalities, modalities), modalities=modalities)

    def rows(self, rows: np.ndarray) -> Self:
        return replace(self, pixels=self.pixels[rows], indices=self.indices[rows])


@dataclass(frozen=True)
class Diffusion:
    """A diffusion model with its calibration."""

    network: TrainedModel
    calibration: Calibration
    calibration_sha256: str


@dataclass(frozen=True)
class DiffusionEngine:
    """The method of the paper: evidence gathered over the noise levels, then detection and mask."""

    model: Diffusion
    decision: DecisionSettings
    seed: int
    batch: int
    name: ClassVar = Engine.DIFFUSION
    optional: ClassVar[tuple[str, ...]] = ()  # modalities that a scan may lack
    neighbours_mm: ClassVar[tuple[float, ...]] = ()  # offsets of slices that the network takes as more channels

    def __post_init__(self) -> None:
        fit_for(self.calibration, self.decision)  # raises where the calibration has no such fit

    @property
    def device(self) -> torch.device:
        return self.model.network.device

    @property
    def calibration(self) -> Calibration:
        return self.model.calibration

    def on_cpu(self) -> Self:
        """Loaded again: weights on a GPU have been rounded."""
        device = torch.device("cpu")
        model = replace(self.model, network=load_trained(self.model.network.folder, device))
        return replace(self, model=model, batch=min(self.batch, batch_for(device)))

    @property
    def modalities(self) -> tuple[str, ...]:
        """In the order of the channels."""
        return self.model.network.modalities

    @property
    def scored_modalities(self) -> tuple[str, ...]:
        """Modalities that the decision is based on; the report shows these."""
        return tuple(self.modalities[channel] for channel in self.calibration.settings.channels)

    @property
    def rules(self) -> DecisionRules:
        calibration, decision = self.calibration, self.decision
        if decision.detector == Detector.CALIBRATED:
            decision = replace(decision, detector=calibration.detector)
        level = fit_for(calibration, decision).healthy_threshold or 0.0
        return DecisionRules(self.name, decision, calibration.cut, level)

    def decide(self, slices: EngineSlices, progress: Progress) -> Decisions:
        """Detect and mask each slice."""
        slices = slices.channels(self.modalities)
        calibration, seeds = self.calibration, slice_seeds(slices.indices, self.seed)
        request = EvidenceRequest(calibration.settings, [calibration.strength], self.device, self.batch)
        request = request.in_even_batches(len(seeds))
        predict, pixels = self.model.network.predict, slices.pixels
        evidence = concatenate(evidence_batches(predict, lambda rows: pixels[rows], seeds, request, progress))
        return decide(evidence, calibration, self.decision, slices.positions)

    def settings(self) -> dict[str, Any]:
        """Everything that determines the result, for summary.json."""
        calibration = self.calibration
        return {
            "calibration_sha256": self.model.calibration_sha256,
            "precision": self.model.network.predict.precision,
            "strength": calibration.strength,
            "strength_by": calibration.strength_by,
            "signal": calibration.settings.signal,
            "gradient_share": calibration.settings.gradient_share,
            "detector": self.rules.decision.detector,
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

    @property
    def rules(self) -> DecisionRules:
        chosen = self.student.choices.threshold_probability is not None
        return DecisionRules(self.name, healthy_level=0.5, threshold_chosen=chosen)

    def decide(self, slices: EngineSlices, progress: Progress) -> Decisions:
        pixels = slices.channels(self.modalities).pixels
        return self.student.decide(lambda rows: pixels[rows], slices.positions, progress)

    def settings(self) -> dict[str, Any]:
        calibration = to_plain(self.student.calibration)
        return {"student_sha256": self.student.sha256, "student": calibration, **to_plain(self.student.choices)}


def decide_where_it_fits(
    engine: DiffusionEngine | StudentEngine, slices: EngineSlices, progress: Progress
) -> Decisions:
    """By the engine; on the CPU, with a warning, if the memory of its device is too small for one slice."""
    try:
        return engine.decide(slices, progress)
    except NotEnoughMemoryError:
        if engine.device.type == "cpu":
            raise
    message = f"not enough memory on {engine.device}; computed on the CPU instead, in fp32"
    warnings.warn(message, ScanWarning, stacklevel=2)
    return engine.on_cpu().decide(slices, progress)
