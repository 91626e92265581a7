"""The engines that decide on the slices of a scan. Both have the same properties and methods."""

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from anofpdm.method.calibration import Calibration
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import Decisions, DecisionSettings, decide, fit_for
from anofpdm.method.evidence import Evidence
from anofpdm.method.many_slices import EvidenceRequest, gather_evidence, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.options import Detector, Engine
from anofpdm.report.display import Curves
from anofpdm.report.explanation import add_evidence
from anofpdm.student.model import Student
from anofpdm.util.progress import Progress

TASK = "Segmenting"


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
    neighbours_mm: ClassVar[tuple[float, ...]] = ()  # offsets of slices that the network takes as further channels

    def __post_init__(self) -> None:
        fit_for(self.calibration, self.decision)  # raises where the calibration has no such fit

    @property
    def modalities(self) -> tuple[str, ...]:
        """Modalities that a scan must have, in the order of the channels."""
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
        evidence = self.gather_evidence(slices, progress)
        decisions = decide(evidence, self.calibration, self.decision, slices.positions)
        return decisions, Curves.from_evidence(evidence)

    def gather_evidence(self, slices: EngineSlices, progress: Progress) -> Evidence:
        """At the calibrated guidance strength."""
        calibration, seeds = self.calibration, slice_seeds(slices.indices, self.seed)
        request = EvidenceRequest(calibration.settings, [calibration.strength], self.trained.device, self.batch)
        return gather_evidence(self.trained.predict, lambda rows: slices.pixels[rows], seeds, request, progress)

    def explain(
        self, decisions: Decisions, slices: EngineSlices, rows: np.ndarray, progress: Progress
    ) -> tuple[Decisions, Curves | None]:
        """A student's decisions with this engine's evidence added for some rows of the slices, and its curves."""
        if not len(rows):
            return decisions, None
        some = replace(slices, pixels=slices.pixels[rows], indices=slices.indices[rows])
        evidence = self.gather_evidence(some, progress)
        return add_evidence(decisions, rows, evidence), Curves.from_evidence(evidence).expand(rows, len(slices.indices))

    def settings(self) -> dict[str, Any]:
        """Everything that determines the result, for summary.json."""
        calibration, detector = self.calibration, self.decision.detector
        return {
            "calibration_sha256": self.calibration_sha256,
            "precision": self.trained.predict.precision,
            "strength": calibration.strength,
            "strength_by": calibration.strength_by,
            "signal": calibration.settings.signal,
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
    def modalities(self) -> tuple[str, ...]:
        return self.student.config.modalities

    @property
    def scored_modalities(self) -> tuple[str, ...]:
        return self.modalities

    @property
    def neighbours_mm(self) -> tuple[float, ...]:
        return self.student.config.neighbours_mm

    def decide(self, slices: EngineSlices, progress: Progress) -> tuple[Decisions, Curves | None]:
        return self.student.decide(lambda rows: slices.pixels[rows], slices.positions, progress), None

    def settings(self) -> dict[str, Any]:
        return {"student_sha256": self.student.sha256, "student": self.student.calibration.to_dict()}


SegmentEngine = DiffusionEngine | StudentEngine
