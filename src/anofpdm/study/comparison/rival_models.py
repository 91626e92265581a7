"""The networks that methods need, and the cost of running them."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anofpdm.choices import Precision, Split
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError, EvaluationError, ModelError
from anofpdm.method.guidance import PredictNoise
from anofpdm.network.checkpoint import WEIGHTS
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.student.student import Student, load_student
from anofpdm.study.comparison.names import DEFAULT_METHODS, MODEL_TASKS, MethodChoice
from anofpdm.study.rivals.ddim import HealthyGradient, Predict, with_label
from anofpdm.study.rivals.guide import Guide, load_guide
from anofpdm.util.distributed import World

STUDENT_EVALUATIONS = 2.0  # the slice and its mirror image


@dataclass(frozen=True)
class Models:
    """Networks as functions, and the hashes of their weights."""

    guided: PredictNoise
    healthy: Predict | None = None  # trained on healthy slices, without labels
    simplex: Predict | None = None  # the same, with simplex noise
    unconditional: Predict | None = None  # trained on all slices, without labels
    classifier: HealthyGradient | None = None
    student: Student | None = None  # of the guided model
    hashes: Mapping[str, str] = field(default_factory=dict)  # by field name, without the guided model's

    def missing(self, needs: tuple[str, ...]) -> list[str]:
        return [name for name in needs if getattr(self, name) is None]

    def required(self, name: str) -> Any:
        if self.missing((name,)):
            raise ConfigError(f"missing model: {how_to_get(name)}")
        return getattr(self, name)


class NoDiffusionModel:
    """In place of a network, where a student is evaluated that has no diffusion model."""

    precision = Precision.FP32

    def __init__(self, folder: Path, device: torch.device):
        self.folder, self.device = folder, device

    def __call__(self, *_: object) -> Tensor:
        raise ModelError(f"{self.folder}: has a student only, and this needs its diffusion model")


def load_evaluated(folder: Path, device: torch.device, precision: str, methods: Collection[str] = ()) -> TrainedModel:
    """The diffusion model of a folder; without one, a stand-in if only its student is evaluated."""
    if (folder / WEIGHTS).is_file() or set(methods) - {MethodChoice.ANOFPDM_STUDENT}:
        return load_trained(folder, device, precision)
    student = load_student(folder, None, device)
    if student is None:
        return load_trained(folder, device, precision)  # which reports what is missing
    predict: Any = NoDiffusionModel(folder, device)
    return TrainedModel(folder, predict, student.config.modalities, student.config.size, student.sha256)


def load_models(trained: TrainedModel, given: Mapping[str, Path], device: torch.device, precision: str) -> Models:
    """The trained model, its student, and the models given by name (see MODEL_TASKS)."""
    networks: dict[str, Any] = {}
    hashes: dict[str, str] = {}
    for name in (name for name in MODEL_TASKS if name in given):
        task, noise = MODEL_TASKS[name]
        loaded: TrainedModel | Guide
        if task == "classifier":
            loaded = load_guide(given[name], device)
            networks[name] = loaded.gradient
        else:
            loaded = load_trained(given[name], device, precision, task=task, noise=noise)
            networks[name] = with_label(loaded.predict, 0)  # trained without labels
        if loaded.modalities != trained.modalities or loaded.size != trained.size:
            raise ConfigError(f"--with {name}={given[name]}: modalities or size differ from those of {trained.folder}")
        hashes[name] = loaded.sha256
    with contextlib.suppress(ModelError):  # a student of another model is ignored
        teacher = None if isinstance(trained.predict, NoDiffusionModel) else trained.sha256
        if student := load_student(trained.folder, teacher, device):
            networks["student"], hashes["student"] = student, student.sha256
    return Models(trained.predict, **networks, hashes=hashes)


def default_methods(trained: TrainedModel, models: Models, cohort: Cohort) -> tuple[MethodChoice, ...]:
    """The student alone where the others lack a diffusion model, modalities, or slices to calibrate with."""
    others = cohort.modalities == trained.modalities and len(cohort.rows(Split.VAL)) > 0
    if models.student is None or (others and not isinstance(trained.predict, NoDiffusionModel)):
        return DEFAULT_METHODS
    return (MethodChoice.ANOFPDM_STUDENT,)


def check_student_fits(student: Student, folder: Path, cohort: Cohort) -> None:
    needed, size = student.config.needed, student.config.size
    if absent := [name for name in needed if name not in cohort.modalities]:
        raise EvaluationError(
            f"{folder}: its student needs {', '.join(needed)}, and {cohort.path} has no {', '.join(absent)}; prepare "
            f"the cohort with --modalities {','.join(student.config.modalities)}"
        )
    if cohort.slices.shape[-1] != size:
        raise EvaluationError(
            f"{folder}: its student takes slices of {size} x {size}, but {cohort.path} has "
            f"{cohort.slices.shape[-1]} x {cohort.slices.shape[-1]}; prepare the cohort with --size {size}"
        )


def how_to_get(name: str) -> str:
    if name == "student":
        return "a student (anofpdm distill)"
    task, noise = MODEL_TASKS[name]
    extra = f" --noise {noise}" if noise != "gaussian" else ""
    return f"--with {name}=MODEL (anofpdm train --task {task}{extra})"


class CostMeter:
    """Counts the slices that pass through the networks of `models`, and the time since its creation."""

    def __init__(self, models: Models, world: World):
        self.count, self.world, self.start = 0, world, time.perf_counter()
        networks = {name: getattr(models, name) for name in ("guided", *MODEL_TASKS)}
        counted: dict[str, Any] = {name: self._counted(network) for name, network in networks.items() if network}
        self.models = replace(models, **counted)

    def _counted(self, network: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(*inputs: Any) -> Tensor:
            result = network(*inputs)
            self.count += len(result)
            return result

        return counted

    def cost(self, n_slices: int) -> dict[str, float]:
        """Of one slice: evaluations of any network, and seconds."""
        count = sum(self.world.all_gather(self.count))
        seconds = self.world.count * (time.perf_counter() - self.start)
        return {"evaluations": count / n_slices, "seconds": seconds / n_slices}
