"""The networks that methods need."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from anofpdm.baselines.ddim import Predict
from anofpdm.errors import ConfigError, ModelError
from anofpdm.evaluation.comparison.names import MODEL_TASKS
from anofpdm.method.guidance import PredictNoise
from anofpdm.network.predictor import Guide, HealthyGradient, TrainedModel, load_guide, load_trained
from anofpdm.student.model import Student, load_student

Network = TypeVar("Network")


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


def load_models(trained: TrainedModel, given: Mapping[str, Path], device: torch.device, precision: str) -> Models:
    """The trained model, its student, and the models given by name (see MODEL_TASKS)."""
    hashes: dict[str, str] = {}

    def checked(name: str, loaded: TrainedModel | Guide) -> None:
        if loaded.modalities != trained.modalities or loaded.size != trained.size:
            raise ConfigError(f"--with {name}={given[name]}: modalities or size differ from those of {trained.folder}")
        hashes[name] = loaded.sha256

    def predictor(name: str) -> Predict | None:
        if name not in given:
            return None
        task, noise = MODEL_TASKS[name]
        loaded = load_trained(given[name], device, precision, task=task, noise=noise)
        checked(name, loaded)
        return without_labels(loaded.predict)

    healthy, simplex, unconditional = (predictor(name) for name in ("healthy", "simplex", "unconditional"))
    guide = load_guide(given["classifier"], device) if "classifier" in given else None
    if guide is not None:
        checked("classifier", guide)
    student = None
    with contextlib.suppress(ModelError):  # a student of another model is ignored
        student = load_student(trained.folder, trained.sha256, device)
    if student is not None:
        hashes["student"] = student.sha256
    gradient = guide.gradient if guide is not None else None
    return Models(trained.predict, healthy, simplex, unconditional, gradient, student, hashes)


def required(network: Network | None, name: str) -> Network:
    if network is None:
        raise ConfigError(f"missing model: {how_to_get(name)}")
    return network


def how_to_get(name: str) -> str:
    if name == "student":
        return "a student (anofpdm distill)"
    task, noise = MODEL_TASKS[name]
    extra = f" --noise {noise}" if noise != "gaussian" else ""
    return f"--with {name}=MODEL (anofpdm train --task {task}{extra})"


def without_labels(predict: PredictNoise) -> Predict:
    """A network trained without labels: label 0 for every slice."""

    def predict_noise(x: Tensor, t: int) -> Tensor:
        return predict(x, t, torch.zeros(len(x), dtype=torch.long, device=x.device))

    return predict_noise
