"""Every method that can be evaluated, by name: one table for the command line, the tables and the pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from anofpdm.baselines import anoddpm, cg_cdm, ddim_classifier, ddim_classifier_free
from anofpdm.baselines.ddim import Predict, levels_up_to
from anofpdm.errors import ConfigError
from anofpdm.method.calibration import CONTEXT_MM
from anofpdm.method.decision import OURS, PAPER, PEAK_SHARE, DecisionSettings
from anofpdm.method.forward_process import slice_noise
from anofpdm.method.guidance import PredictNoise
from anofpdm.method.mask import MaskSettings
from anofpdm.method.variants import VARIANTS
from anofpdm.network.predictor import HealthyGradient
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.student.model import Student

DDIM_LEVELS = 100  # of the way up to a thousand; a shorter way takes fewer

Setting = Mapping[str, float]
Something = TypeVar("Something")


@dataclass(frozen=True)
class Models:
    """The networks at hand, as what they are asked."""

    guided: PredictNoise
    healthy: Predict | None = None  # trained on healthy slices, no labels
    simplex: Predict | None = None  # the same with simplex noise
    unconditional: Predict | None = None  # trained on all slices, no labels
    classifier: HealthyGradient | None = None
    student: Student | None = None  # beside the model itself


MODEL_TASKS = {  # how each is trained: task and noise
    "healthy": ("healthy", "gaussian"),
    "simplex": ("healthy", "simplex"),
    "unconditional": ("unconditional", "gaussian"),
    "classifier": ("classifier", "gaussian"),
}


@dataclass(frozen=True)
class FromEvidence:
    """A reading of the forward process: calibrated by image-level labels, decided without a mask."""

    encoding: str
    signal: str
    choices: DecisionSettings
    of_the_paper: bool = True  # its guidance strength too is chosen as there

    needs: tuple[str, ...] = ()
    tuned_with_masks: bool = False
    setups: tuple[str, ...] = ("unhealthy", "mixed")


@dataclass(frozen=True)
class FromStudent:
    """The model's student, calibrated by image-level labels when it was taught."""

    needs: tuple[str, ...] = ("student",)
    tuned_with_masks: bool = False
    setups: tuple[str, ...] = ("unhealthy", "mixed")


@dataclass(frozen=True)
class Reconstruction:
    """A comparison method: a map from one setting of its own, the setting and a threshold tuned with masks."""

    squared_difference: Callable[[Models, Tensor, Sequence[int], Setting], Tensor]  # -> [N, C, H, W]
    grid: tuple[Setting, ...]  # the first is the one its authors, or the paper, name
    needs: tuple[str, ...]

    tuned_with_masks: bool = True
    setups: tuple[str, ...] = ("unhealthy", "mixed")


# ---- the comparison methods ------------------------------------------------------------------------------------------


def _anoddpm(kind: str) -> Callable[[Models, Tensor, Sequence[int], Setting], Tensor]:
    def difference(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
        draws = anoddpm.simplex_draws if kind == "simplex" else anoddpm.gaussian_draws
        found = anoddpm.reconstruct(
            _needed(models.simplex if kind == "simplex" else models.healthy),
            x0,
            level=int(setting["level"]),
            draw=draws(x0, seeds),
            schedule=NoiseSchedule.linear(),
        )
        return (found - x0).square()

    return difference


def _ddim_classifier(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    found = ddim_classifier.reconstruct(
        _needed(models.unconditional),
        _needed(models.classifier),
        x0,
        levels=_levels(setting),
        scale=setting["scale"],
        noise=slice_noise(x0, seeds)(),
        schedule=NoiseSchedule.linear(),
        invert=bool(setting["invert"]),
    )
    return (found - x0).square()


def _ddim_classifier_free(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    found = ddim_classifier_free.reconstruct(
        models.guided,
        x0,
        levels=_levels(setting),
        strength=setting["strength"],
        noise=slice_noise(x0, seeds)(),
        schedule=NoiseSchedule.linear(),
    )
    return (found - x0).square()


def _cg_cdm(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    unhealthy, healthier = cg_cdm.paths(
        models.guided,
        _needed(models.classifier),
        x0,
        levels=levels_up_to(int(setting["level"]), int(setting["steps"])),
        scale=setting["scale"],
        noise=slice_noise(x0, seeds)(),
        schedule=NoiseSchedule.linear(),
    )
    return ((unhealthy - healthier) / cg_cdm.HEALTHY_SHARE).square()  # the gradient with respect to the label


def _levels(setting: Setting) -> list[int]:
    top = int(setting["level"])
    return levels_up_to(top, max(2, round(DDIM_LEVELS * top / 1000)))


def _needed(model: Something | None) -> Something:
    assert model is not None, "checked before any method runs"
    return model


def _grid(**values: Sequence[float]) -> tuple[Setting, ...]:
    """Every combination; the first of each is the one that is named first."""
    return tuple(dict(zip(values, some, strict=True)) for some in product(*values.values()))


# ---- the table -------------------------------------------------------------------------------------------------------


Method = FromEvidence | FromStudent | Reconstruction
CURVE = replace(PAPER, detector="curve")

METHODS: dict[str, Method] = {
    "anoddpm-gaussian": Reconstruction(_anoddpm("gaussian"), _grid(level=(300, 200, 400)), ("healthy",)),
    "anoddpm-simplex": Reconstruction(_anoddpm("simplex"), _grid(level=(200, 100, 300)), ("simplex",)),
    "ddim-classifier": Reconstruction(
        _ddim_classifier,
        (
            *_grid(level=(500,), scale=(100, 300), invert=(1,)),  # as Wolleb
            *_grid(level=(200,), scale=(1000, 500), invert=(0,)),  # as the AnoFPDM authors ran it
        ),
        ("unconditional", "classifier"),
    ),
    "ddim-classifier-free": Reconstruction(
        _ddim_classifier_free, _grid(level=(450, 300, 750), strength=(1.1, 1.3, 2.0)), ()
    ),
    "cg-cdm": Reconstruction(
        _cg_cdm, _grid(level=(400, 200), scale=(10, 100), steps=(10,)), ("classifier",), setups=("unhealthy",)
    ),
    **{
        name: FromEvidence(one.encoding, one.signal, replace(PAPER, last_map=one.last_map))
        for name, one in VARIANTS.items()
    },
    "gradient-above": FromEvidence("ddim", "gradient-above", PAPER),  # a few levels do not do the plain one justice
    # What is ours, one thing at a time: the paper's reading with the other detector, then that and one thing more.
    "anofpdm-curve": FromEvidence("ddim", "error", CURVE),
    "anofpdm-healthy": FromEvidence("ddim", "error", replace(CURVE, mask=MaskSettings("healthy"))),
    "anofpdm-context": FromEvidence("ddim", "error", replace(CURVE, context_mm=CONTEXT_MM)),
    "anofpdm-peak": FromEvidence("ddim", "error", replace(CURVE, mask=MaskSettings(peak_share=PEAK_SHARE))),
    "anofpdm-by-map": FromEvidence("ddim", "error", CURVE, of_the_paper=False),  # how the guidance strength is chosen
    "anofpdm-ours": FromEvidence("ddim", "error", OURS, of_the_paper=False),
    "anofpdm-agreement": FromEvidence("ddim", "agreement", OURS, of_the_paper=False),  # maps of another signal
    "anofpdm-student": FromStudent(),
}


@dataclass(frozen=True)
class Chosen:
    """Methods to run, in the table's order."""

    names: tuple[str, ...]
    methods: dict[str, Method] = field(default_factory=lambda: METHODS)

    @classmethod
    def by_words(cls, words: Sequence[str], models: Models) -> "Chosen":
        """`all` means every method whose models are at hand."""
        at_hand = [name for name in METHODS if not missing_models(METHODS[name], models)]
        wanted = at_hand if "all" in words else list(words)
        for name in wanted:
            if name not in METHODS:
                raise ConfigError(f"unknown method {name!r}; choose all, or of {', '.join(METHODS)}")
            if lacking := missing_models(METHODS[name], models):
                how = "; ".join(map(_how_to_have, lacking))
                raise ConfigError(f"{name} needs more than the model itself: {how}")
        return cls(tuple(name for name in METHODS if name in wanted))


def missing_models(method: Method, models: Models) -> list[str]:
    return [name for name in method.needs if getattr(models, name) is None]


def _how_to_have(name: str) -> str:
    if name == "student":
        return "a student (anofpdm distill)"
    task, noise = MODEL_TASKS[name]
    extra = f" --noise {noise}" if noise != "gaussian" else ""
    return f"--with {name}=MODEL (anofpdm train --task {task}{extra})"


def scored_mean(difference: Tensor, channels: Sequence[int]) -> Tensor:
    """[N, C, H, W] -> [N, H, W], over the scored channels."""
    return difference[:, list(channels)].mean(1)


def unlabelled(predict: PredictNoise) -> Predict:
    """A network without labels, asked without one."""

    def ask(x: Tensor, t: int) -> Tensor:
        return predict(x, t, torch.zeros(len(x), dtype=torch.long, device=x.device))

    return ask
