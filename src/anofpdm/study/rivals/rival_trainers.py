"""Training of the networks that only comparison methods need: a classifier of noised slices, and simplex noise."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.choices import Noise, Task
from anofpdm.network.training.trainer import Inputs, Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.study.rivals.noised_classifier import NoisedClassifier
from anofpdm.study.rivals.simplex import random_permutations, simplex_noise


def choose_trainer(config: TrainingConfig) -> type[Trainer]:
    if config.task == Task.CLASSIFIER:
        return ClassifierTrainer
    return SimplexTrainer if config.noise == Noise.SIMPLEX else Trainer


class SimplexTrainer(Trainer):
    def draw_noise(self, x0: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        _, channels, height, width = x0.shape
        fields = random_permutations(self.config.batch * channels, generator).view(-1, channels, 256)[self.part]
        levels = t.repeat_interleave(channels)
        return simplex_noise(fields.flatten(0, 1), levels, height, width).view_as(x0)


class ClassifierTrainer(Trainer):
    """The target of a slice is its class [B] instead of its noise."""

    def new_network(self) -> nn.Module:
        return NoisedClassifier(self.network_config).to(self.device)

    def inputs(self, slices: Tensor, labels: Tensor) -> Inputs:
        noised, classes = super().inputs(slices, labels), labels.to(self.device)
        return Inputs(noised.x, noised.t, classes, classes)

    def losses(self, inputs: Inputs) -> Tensor:
        with self.arithmetic():
            logits = self.runner(inputs.x, inputs.t)
        return F.cross_entropy(logits, inputs.target, reduction="none")
