"""A request: engine, explanation and all options, resolved once against a model, for any number of scans."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from anofpdm import __version__
from anofpdm.choices import Detector, Engine, Raw, Threshold
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.modalities import InputModalities
from anofpdm.segment.brain_source import BrainSource
from anofpdm.segment.engines import DiffusionEngine, StudentEngine
from anofpdm.student.typical import TypicalScans

FOREGROUND_TOLERANCE = 0.08  # fraction of the pixels, beyond the range seen in calibration
EXPLAINER_SETTINGS = ("calibration_sha256", "precision", "seed")  # recorded beside those of the student

# Slices, counted from 1 at the inferior end, or the central slice of each finding.
Explain = Sequence[int] | Literal["findings"] | None


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
class KnownScans:
    """The scans that a model was made for: how they are prepared, and what those in training looked like."""

    modalities: tuple[str, ...]  # of all engines
    size: int  # slices are size x size
    expects: ScanExpectation
    foreground: tuple[float, float]  # smallest and largest fraction among the scans in calibration
    typical: TypicalScans | None

    @property
    def usual_foreground(self) -> tuple[float, float]:
        """Smallest and largest fraction that is not unusual."""
        low, high = self.foreground
        return low - FOREGROUND_TOLERANCE, high + FOREGROUND_TOLERANCE


@dataclass(frozen=True)
class SegmentRequest:
    engine: DiffusionEngine | StudentEngine
    model_name: str
    model_sha256: str
    scans: KnownScans
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
            "torch": str(torch.__version__),
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
