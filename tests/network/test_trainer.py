"""Training steps."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from anofpdm.errors import TrainingError
from anofpdm.network.training import run_training
from anofpdm.network.training.batches import row_batches
from tests.network.trainers import NETWORK, UNLABELLED, WITHOUT_DROPOUT, inputs_of, limit_memory, trainer_of
from tests.two_processes import run_in_two_processes


class TestStep:
    def test_noise_follows_the_schedule(self, cohort):
        trainer = trainer_of(cohort, augment=False)
        inputs = inputs_of(trainer, cohort)
        clean = trainer.schedule.clean(inputs.x, inputs.target, inputs.t)
        rows = next(row_batches(cohort, trainer.config))
        near = inputs.t < 500  # at higher levels, float32 has lost the slice
        np.testing.assert_allclose(clean[near].numpy(), cohort.pixels(rows)[near.numpy()], atol=1e-3)

    def test_levels_are_uniform_and_a_fraction_of_labels_is_withheld(self, cohort):
        trainer = trainer_of(cohort, null_share=0.25)
        steps = [inputs_of(trainer, cohort) for trainer.step in range(200)]
        levels, labels = (torch.cat(parts) for parts in zip(*((step.t, step.labels) for step in steps), strict=True))
        assert np.histogram(levels, bins=10, range=(0, 1000))[0].min() > 120  # 160 expected
        assert float((labels == 2).float().mean()) == pytest.approx(0.25, abs=0.04)

    def test_the_loss_is_the_mean_squared_error(self, cohort):
        trainer = trainer_of(cohort)
        inputs = inputs_of(trainer, cohort)
        loss = trainer.update(inputs)  # the network predicts 0 at the start
        assert loss.item() == pytest.approx(inputs.target.square().mean().item(), rel=1e-5)

    def test_the_average_follows_its_formula(self, cohort):
        trainer = trainer_of(cohort, average=0.5)
        expected = [parameter.detach().clone() for parameter in trainer.network.parameters()]
        for step in range(6):
            trainer.update(inputs_of(trainer, cohort))
            decay = min(0.5, (1 + step) / (10 + step))
            for average, now in zip(expected, trainer.network.parameters(), strict=True):
                average.mul_(decay).add_(now.detach(), alpha=1 - decay)
        torch.testing.assert_close([*trainer.average.parameters()], expected, rtol=1e-5, atol=1e-7)

    def test_the_learning_rate_warms_up(self, cohort):
        trainer, rates = trainer_of(cohort, warm_up=4, learning_rate=1e-3), []
        for _ in range(6):
            trainer.update(inputs_of(trainer, cohort))
            rates.append(trainer.optimiser.param_groups[0]["lr"])
        np.testing.assert_allclose(rates, [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])

    @pytest.mark.parametrize("task", ["guided", "unconditional", "healthy"])
    def test_the_loss_falls(self, cohort, task):
        network = NETWORK if task == "guided" else UNLABELLED
        trainer = trainer_of(cohort, network, task=task, learning_rate=4e-3, augment=False)
        losses = [trainer.update(inputs_of(trainer, cohort)).item() for _ in range(30)]
        assert np.mean(losses[-7:]) < 0.5 * np.mean(losses[:5])

    def test_out_of_memory_halves_the_micro_batch_and_keeps_the_batch(self, cohort):
        calm, pressed = trainer_of(cohort, WITHOUT_DROPOUT), trainer_of(cohort, WITHOUT_DROPOUT)
        limit_memory(pressed, 2)
        for _ in range(3):
            for trainer in (calm, pressed):
                trainer.update(inputs_of(trainer, cohort))
        assert pressed.micro_batch == 2
        notes = ["", "memory is short: 2 of 8 slices at a time, the batch size is unchanged"]
        assert [run_training.memory_note(trainer) for trainer in (calm, pressed)] == notes
        averages = [list(trainer.average.parameters()) for trainer in (calm, pressed)]
        torch.testing.assert_close(*averages, rtol=1e-3, atol=1e-5)

    def test_too_little_memory_for_one_slice_is_an_error(self, cohort):
        trainer = trainer_of(cohort)
        limit_memory(trainer, 0)
        with pytest.raises(TrainingError, match="smaller --preset"):
            trainer.update(inputs_of(trainer, cohort))


TRAIN_IN_BOTH = """
import gc, sys
import torch
from safetensors.torch import save_file
from anofpdm.cohorts import open_cohort
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.util.distributed import World
from tests.network.trainers import CPU, WITHOUT_DROPOUT, inputs_of, limit_memory

def train(world, out, short_of_memory=False):
    cohort = open_cohort(sys.argv[1])
    torch.manual_seed(0)
    trainer = Trainer(WITHOUT_DROPOUT, TrainingConfig(batch=8, warm_up=1), CPU, world)
    if short_of_memory and not world.is_main:
        limit_memory(trainer, 2)
    for _ in range(2):
        trainer.update(inputs_of(trainer, cohort))
    trainer._backward(inputs_of(trainer, cohort))
    if world.is_main:
        save_file({name: p.grad.contiguous() for name, p in trainer.network.named_parameters()}, out)

def main():
    world, (alone, shared, short) = World.from_environment(CPU), sys.argv[2:]
    train(world, shared)
    train(world, short, short_of_memory=True)
    if world.is_main:
        train(World(), alone)
    gc.collect()  # whatever still holds gloo's threads when Python ends may bring the process down
    world.close()
"""


def test_two_processes_compute_the_gradient_of_one(cohort, tmp_path):
    """DDP over gloo on a split batch, with the environment that torchrun sets; and one process on the joined batch, two
    steps in, with the same noise. Also when one of them runs out of memory: both must then work in smaller portions."""
    files = [tmp_path / name for name in ("alone", "shared", "short")]
    run_in_two_processes(cohort.path, *files, code=TRAIN_IN_BOTH)
    alone, *others = map(load_file, files)
    assert sum(gradient.abs().sum() for gradient in alone.values()) > 0
    for name, gradient in alone.items():
        for other in others:
            torch.testing.assert_close(gradient, other[name], rtol=1e-4, atol=1e-6, msg=name)
