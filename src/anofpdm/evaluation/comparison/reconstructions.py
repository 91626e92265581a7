"""The comparison methods: squared difference of a slice and its healthy reconstruction, for one setting."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from torch import Tensor

from anofpdm.baselines import anoddpm, cg_cdm, ddim_classifier, ddim_classifier_free
from anofpdm.baselines.ddim import levels_up_to
from anofpdm.evaluation.comparison.models import Models, required
from anofpdm.method.forward_process import slice_noise
from anofpdm.network.schedule import NoiseSchedule

DDIM_LEVELS = 100  # in a range of 1000; proportionally fewer below a lower top

Setting = Mapping[str, float]
SquaredDifference = Callable[[Models, Tensor, Sequence[int], Setting], Tensor]  # x0, seeds -> [N, C, H, W]


def anoddpm_gaussian(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    reconstructed = anoddpm.reconstruct(
        required(models.healthy, "healthy"),
        x0,
        level=int(setting["level"]),
        draw=anoddpm.gaussian_draws(x0, seeds),
        schedule=NoiseSchedule.linear(),
    )
    return (reconstructed - x0).square()


def anoddpm_simplex(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    reconstructed = anoddpm.reconstruct(
        required(models.simplex, "simplex"),
        x0,
        level=int(setting["level"]),
        draw=anoddpm.simplex_draws(x0, seeds),
        schedule=NoiseSchedule.linear(),
    )
    return (reconstructed - x0).square()


def classifier_guided(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    reconstructed = ddim_classifier.reconstruct(
        required(models.unconditional, "unconditional"),
        required(models.classifier, "classifier"),
        x0,
        levels=_levels(setting),
        scale=setting["scale"],
        noise=slice_noise(x0, seeds)(),
        schedule=NoiseSchedule.linear(),
        invert=bool(setting["invert"]),
    )
    return (reconstructed - x0).square()


def classifier_free(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    reconstructed = ddim_classifier_free.reconstruct(
        models.guided,
        x0,
        levels=_levels(setting),
        strength=setting["strength"],
        noise=slice_noise(x0, seeds)(),
        schedule=NoiseSchedule.linear(),
    )
    return (reconstructed - x0).square()


def label_gradient(models: Models, x0: Tensor, seeds: Sequence[int], setting: Setting) -> Tensor:
    """CG-CDM: the finite-difference gradient with respect to the label, squared."""
    unhealthy, healthier = cg_cdm.paths(
        models.guided,
        required(models.classifier, "classifier"),
        x0,
        levels=levels_up_to(int(setting["level"]), int(setting["steps"])),
        scale=setting["scale"],
        noise=slice_noise(x0, seeds)(),
        schedule=NoiseSchedule.linear(),
    )
    return ((unhealthy - healthier) / cg_cdm.HEALTHY_SHARE).square()


def setting_grid(**values: Sequence[float]) -> tuple[Setting, ...]:
    """All combinations. The first takes the first of all values."""
    return tuple(dict(zip(values, combination, strict=True)) for combination in product(*values.values()))


def describe_setting(setting: Setting) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in setting.items())


def _levels(setting: Setting) -> list[int]:
    top = int(setting["level"])
    return levels_up_to(top, max(2, round(DDIM_LEVELS * top / 1000)))
