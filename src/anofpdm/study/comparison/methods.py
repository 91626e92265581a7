"""Registry of the methods that can be evaluated. The command line, tables and figures all use it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar

from torch import Tensor

from anofpdm.choices import Detector, Encoding, Signal, Threshold
from anofpdm.errors import ConfigError
from anofpdm.method.calibration import CONTEXT_MM
from anofpdm.method.decision import OURS, PAPER, PEAK_SHARE, DecisionSettings
from anofpdm.method.forward_process import slice_noise
from anofpdm.method.mask import MaskSettings
from anofpdm.study.comparison.names import SETUPS, MethodChoice, Setup
from anofpdm.study.comparison.rival_models import Models, how_to_get
from anofpdm.study.missing import name_without
from anofpdm.study.rivals import anoddpm, cg_cdm, ddim_classifier, ddim_classifier_free
from anofpdm.study.rivals.ddim import levels_up_to
from anofpdm.util.sets import subsets

DDIM_LEVELS = 100  # in a range of 1000; proportionally fewer below a lower top

Setting = Mapping[str, float]
SquaredDifference = Callable[[Models, Tensor, Sequence[int], Setting], Tensor]  # x0, seeds -> [N, C, H, W]


@dataclass(frozen=True)
class EvidenceMethod:
    """Masks from the evidence of the forward process, calibrated with image-level labels."""

    decision: DecisionSettings
    signal: Signal = Signal.ERROR  # AUTO: the one that calibration chooses
    encoding: Encoding = Encoding.DDIM
    paper_strength: bool = True  # guidance strength chosen as in the paper, by the cosine

    needs: ClassVar[tuple[str, ...]] = ()
    setups: ClassVar[tuple[Setup, ...]] = SETUPS


@dataclass(frozen=True)
class StudentMethod:
    """The model's student, calibrated with image-level labels when it was trained."""

    without: tuple[str, ...] = ()  # optional modalities that are left out, as if the scans lacked them

    needs: ClassVar[tuple[str, ...]] = ("student",)
    setups: ClassVar[tuple[Setup, ...]] = SETUPS


@dataclass(frozen=True)
class ReconstructionMethod:
    """A comparison method. Its setting and threshold are tuned with lesion masks of the validation split."""

    squared_difference: SquaredDifference  # of a slice and its healthy reconstruction
    grid: tuple[Setting, ...]  # first the setting of its authors, or of the paper
    needs: tuple[str, ...]
    setups: tuple[Setup, ...] = SETUPS


Method = EvidenceMethod | StudentMethod | ReconstructionMethod

# ---- comparison methods ----------------------------------------------------------------------------------------------


def anoddpm_gaussian(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    draw = anoddpm.gaussian_draws(x0, seeds)
    return (anoddpm.reconstruct(models.required("healthy"), x0, int(setting["level"]), draw) - x0).square()


def anoddpm_simplex(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    draw = anoddpm.simplex_draws(x0, seeds)
    return (anoddpm.reconstruct(models.required("simplex"), x0, int(setting["level"]), draw) - x0).square()


def classifier_guided(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    reconstructed = ddim_classifier.reconstruct(
        models.required("unconditional"),
        models.required("classifier"),
        x0,
        levels=_levels(setting),
        scale=setting["scale"],
        noise=slice_noise(x0, seeds)(),
        invert=bool(setting["invert"]),
    )
    return (reconstructed - x0).square()


def classifier_free(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    noise = slice_noise(x0, seeds)()
    reconstructed = ddim_classifier_free.reconstruct(
        models.guided, x0, levels=_levels(setting), strength=setting["strength"], noise=noise
    )
    return (reconstructed - x0).square()


def label_gradient(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    """CG-CDM: the finite-difference gradient with respect to the label, squared."""
    unhealthy, healthier = cg_cdm.paths(
        models.guided,
        models.required("classifier"),
        x0,
        levels=levels_up_to(int(setting["level"]), int(setting["steps"])),
        scale=setting["scale"],
        noise=slice_noise(x0, seeds)(),
    )
    return ((unhealthy - healthier) / cg_cdm.HEALTHY_SHARE).square()


def _levels(setting: Setting) -> list[int]:
    top = int(setting["level"])
    return levels_up_to(top, max(2, round(DDIM_LEVELS * top / 1000)))


def describe_setting(setting: Setting) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())


def _grid(**values: Sequence[float]) -> tuple[Setting, ...]:
    """All combinations. The first takes the first of all values."""
    return tuple(dict(zip(values, combination, strict=True)) for combination in product(*values.values()))


# ---- registry --------------------------------------------------------------------------------------------------------

CURVE, LAST = replace(PAPER, detector=Detector.CURVE), replace(PAPER, last_map=True)

VARIANTS = {  # the seven of the paper, and one of ours
    "anofpdm-ddim": EvidenceMethod(PAPER),
    "anofpdm-ddpm": EvidenceMethod(PAPER, encoding=Encoding.DDPM),
    "anofpdm-ddim-last": EvidenceMethod(LAST),
    "anofpdm-ddpm-last": EvidenceMethod(LAST, encoding=Encoding.DDPM),
    "gradient": EvidenceMethod(PAPER, Signal.GRADIENT),
    "gradient-last": EvidenceMethod(LAST, Signal.GRADIENT),
    "gradient-weighted": EvidenceMethod(PAPER, Signal.GRADIENT_WEIGHTED),
    "gradient-above": EvidenceMethod(PAPER, Signal.GRADIENT_ABOVE),  # `gradient` needs many levels
}

METHODS: dict[str, Method] = {
    "anoddpm-gaussian": ReconstructionMethod(anoddpm_gaussian, _grid(level=(300, 200, 400)), ("healthy",)),
    "anoddpm-simplex": ReconstructionMethod(anoddpm_simplex, _grid(level=(200, 100, 300)), ("simplex",)),
    "ddim-classifier": ReconstructionMethod(
        classifier_guided,
        (
            *_grid(level=(500,), scale=(100, 300), invert=(1,)),  # as Wolleb et al.
            *_grid(level=(200,), scale=(1000, 500), invert=(0,)),  # as run by the AnoFPDM authors
        ),
        ("unconditional", "classifier"),
    ),
    "ddim-classifier-free": ReconstructionMethod(
        classifier_free, _grid(level=(450, 300, 750), strength=(1.1, 1.3, 2.0)), ()
    ),
    "cg-cdm": ReconstructionMethod(
        label_gradient, _grid(level=(400, 200), scale=(10, 100), steps=(10,)), ("classifier",), (Setup.UNHEALTHY,)
    ),
    **VARIANTS,
    # Our additions: the paper's method with the curve detector, then one more change each, then all.
    "anofpdm-curve": EvidenceMethod(CURVE),
    "anofpdm-healthy": EvidenceMethod(replace(CURVE, mask=MaskSettings(Threshold.HEALTHY))),
    "anofpdm-context": EvidenceMethod(replace(CURVE, context_mm=CONTEXT_MM)),
    "anofpdm-peak": EvidenceMethod(replace(CURVE, mask=MaskSettings(peak_share=PEAK_SHARE))),
    "anofpdm-by-map": EvidenceMethod(CURVE, paper_strength=False),
    "anofpdm-ours": EvidenceMethod(OURS, paper_strength=False),
    "anofpdm-agreement": EvidenceMethod(OURS, Signal.AGREEMENT, paper_strength=False),
    "anofpdm-default": EvidenceMethod(OURS, Signal.AUTO, paper_strength=False),  # as calibrated for `anofpdm segment`
    "anofpdm-student": StudentMethod(),
}


def student_methods(optional: Sequence[str]) -> dict[str, StudentMethod]:
    """The student without each set of its optional modalities, from one of them to all."""
    sets = [missing for missing in subsets(optional) if missing]
    return {name_without(MethodChoice.ANOFPDM_STUDENT, missing): StudentMethod(missing) for missing in sets}


@dataclass(frozen=True)
class MethodSelection:
    """Methods to run, in the order of the registry."""

    names: tuple[str, ...]
    registry: Mapping[str, Method] = field(default_factory=lambda: METHODS)

    @classmethod
    def from_choices(
        cls, choices: Sequence[MethodChoice], models: Models, without: Sequence[tuple[str, ...]] = ()
    ) -> "MethodSelection":
        """`without`: sets of optional modalities; the student is also evaluated without each of them."""
        available = [name for name in METHODS if not models.missing(METHODS[name].needs)]
        selected = available if MethodChoice.ALL in choices else [str(choice) for choice in choices]
        for name in selected:
            if missing := models.missing(METHODS[name].needs):
                raise ConfigError(f"{name} needs further models: {'; '.join(map(how_to_get, missing))}")
        reduced = student_methods(() if models.student is None else models.student.config.optional)
        names = [name for name, method in reduced.items() if method.without in without]
        return cls((*(name for name in METHODS if name in selected), *names), METHODS | reduced)
