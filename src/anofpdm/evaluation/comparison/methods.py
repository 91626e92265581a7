"""Registry of the methods that can be evaluated. The command line, tables and figures all use it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from anofpdm.errors import ConfigError
from anofpdm.evaluation.comparison import reconstructions as compared
from anofpdm.evaluation.comparison.models import Models, how_to_get
from anofpdm.evaluation.comparison.names import SETUPS, MethodChoice, Setup
from anofpdm.evaluation.comparison.reconstructions import Setting, SquaredDifference, setting_grid
from anofpdm.method.calibration import CONTEXT_MM
from anofpdm.method.decision import OURS, PAPER, PEAK_SHARE, VARIANTS, DecisionSettings
from anofpdm.method.mask import MaskSettings
from anofpdm.options import Detector, Encoding, Signal, Threshold


@dataclass(frozen=True)
class EvidenceMethod:
    """Masks from the evidence of the forward process, calibrated with image-level labels."""

    encoding: Encoding
    signal: Signal
    decision: DecisionSettings
    paper_strength: bool = True  # guidance strength chosen as in the paper, by the cosine

    needs: ClassVar[tuple[str, ...]] = ()
    tuned_with_masks: ClassVar[bool] = False
    setups: ClassVar[tuple[Setup, ...]] = SETUPS


@dataclass(frozen=True)
class StudentMethod:
    """The model's student, calibrated with image-level labels when it was trained."""

    needs: ClassVar[tuple[str, ...]] = ("student",)
    tuned_with_masks: ClassVar[bool] = False
    setups: ClassVar[tuple[Setup, ...]] = SETUPS


@dataclass(frozen=True)
class ReconstructionMethod:
    """A comparison method. Its setting and threshold are tuned with lesion masks of the validation split."""

    squared_difference: SquaredDifference
    grid: tuple[Setting, ...]  # first the setting of its authors, or of the paper
    needs: tuple[str, ...]
    setups: tuple[Setup, ...] = SETUPS

    tuned_with_masks: ClassVar[bool] = True


Method = EvidenceMethod | StudentMethod | ReconstructionMethod
CURVE = replace(PAPER, detector=Detector.CURVE)

METHODS: dict[str, Method] = {
    "anoddpm-gaussian": ReconstructionMethod(
        compared.anoddpm_gaussian, setting_grid(level=(300, 200, 400)), ("healthy",)
    ),
    "anoddpm-simplex": ReconstructionMethod(
        compared.anoddpm_simplex, setting_grid(level=(200, 100, 300)), ("simplex",)
    ),
    "ddim-classifier": ReconstructionMethod(
        compared.classifier_guided,
        (
            *setting_grid(level=(500,), scale=(100, 300), invert=(1,)),  # as Wolleb et al.
            *setting_grid(level=(200,), scale=(1000, 500), invert=(0,)),  # as run by the AnoFPDM authors
        ),
        ("unconditional", "classifier"),
    ),
    "ddim-classifier-free": ReconstructionMethod(
        compared.classifier_free, setting_grid(level=(450, 300, 750), strength=(1.1, 1.3, 2.0)), ()
    ),
    "cg-cdm": ReconstructionMethod(
        compared.label_gradient,
        setting_grid(level=(400, 200), scale=(10, 100), steps=(10,)),
        ("classifier",),
        setups=(Setup.UNHEALTHY,),
    ),
    **{
        name: EvidenceMethod(one.encoding, one.signal, replace(PAPER, last_map=one.last_map))
        for name, one in VARIANTS.items()
    },
    "gradient-above": EvidenceMethod(Encoding.DDIM, Signal.GRADIENT_ABOVE, PAPER),  # `gradient` needs many levels
    # Our additions: the paper's method with the curve detector, then one further change each, then all.
    "anofpdm-curve": EvidenceMethod(Encoding.DDIM, Signal.ERROR, CURVE),
    "anofpdm-healthy": EvidenceMethod(
        Encoding.DDIM, Signal.ERROR, replace(CURVE, mask=MaskSettings(Threshold.HEALTHY))
    ),
    "anofpdm-context": EvidenceMethod(Encoding.DDIM, Signal.ERROR, replace(CURVE, context_mm=CONTEXT_MM)),
    "anofpdm-peak": EvidenceMethod(
        Encoding.DDIM, Signal.ERROR, replace(CURVE, mask=MaskSettings(peak_share=PEAK_SHARE))
    ),
    "anofpdm-by-map": EvidenceMethod(Encoding.DDIM, Signal.ERROR, CURVE, paper_strength=False),
    "anofpdm-ours": EvidenceMethod(Encoding.DDIM, Signal.ERROR, OURS, paper_strength=False),
    "anofpdm-agreement": EvidenceMethod(Encoding.DDIM, Signal.AGREEMENT, OURS, paper_strength=False),
    "anofpdm-student": StudentMethod(),
}


@dataclass(frozen=True)
class MethodSelection:
    """Methods to run, in the order of the registry."""

    names: tuple[str, ...]
    registry: Mapping[str, Method] = field(default_factory=lambda: METHODS)

    @classmethod
    def from_choices(cls, choices: Sequence[MethodChoice], models: Models) -> "MethodSelection":
        available = [name for name in METHODS if not models.missing(METHODS[name].needs)]
        selected = available if MethodChoice.ALL in choices else [str(choice) for choice in choices]
        for name in selected:
            if missing := models.missing(METHODS[name].needs):
                raise ConfigError(f"{name} needs further models: {'; '.join(map(how_to_get, missing))}")
        return cls(tuple(name for name in METHODS if name in selected))

    def evidence_methods(self) -> dict[str, EvidenceMethod]:
        named = ((name, self.registry[name]) for name in self.names)
        return {name: method for name, method in named if isinstance(method, EvidenceMethod)}


def mean_over_scored(difference: Tensor, channels: Sequence[int]) -> Tensor:
    """[N, C, H, W] -> [N, H, W], over the scored channels."""
    return difference[:, list(channels)].mean(1)
