"""Small trainers for the tests of training."""

import dataclasses

import torch

from anofpdm.cohorts import Cohort
from anofpdm.network.config import UNetConfig
from anofpdm.network.training import run_training
from anofpdm.network.training.batches import row_batches
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig

CPU = torch.device("cpu")
NETWORK = UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,))
UNLABELLED = dataclasses.replace(NETWORK, n_labels=1, null_label=0)
WITHOUT_DROPOUT = dataclasses.replace(NETWORK, dropout=0.0)


def new_trainer(network: UNetConfig, config: TrainingConfig) -> Trainer:
    return Trainer(network, config, CPU)


def trainer_of(cohort: Cohort, network: UNetConfig = NETWORK, **options) -> Trainer:
    return run_training.start(cohort, network, TrainingConfig(**{"batch": 8, "warm_up": 3, **options}), new_trainer)


def inputs_of(trainer: Trainer, cohort: Cohort):
    rows = next(row_batches(cohort, trainer.config, trainer.step))[trainer.part]
    return trainer.inputs(torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows]))


def limit_memory(trainer: Trainer, slices: int):
    """To micro-batches of so many slices."""
    losses = trainer.losses

    def with_little_memory(inputs):
        if len(inputs.x) > slices:
            raise torch.OutOfMemoryError
        return losses(inputs)

    trainer.losses = with_little_memory  # type: ignore[method-assign]


def assert_same(tensors: dict, others: dict):
    assert tensors.keys() == others.keys()
    for name in tensors:
        torch.testing.assert_close(tensors[name], others[name], rtol=0, atol=0, msg=name)


def without_zeros(network):
    """Layers that start at zero would hide those before them."""
    torch.manual_seed(1)
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return network
