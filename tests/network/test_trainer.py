"""Training steps."""

import dataclasses
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from anofpdm.errors import TrainingError
from anofpdm.network.training import run_training
from anofpdm.network.training import trainer as trainer_module
from anofpdm.network.training.batches import SliceOrder
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.util.distributed import World
from tests.network.trainers import CPU, NETWORK, UNLABELLED, inputs_of, trainer_of


class TestStep:
    def test_noise_follows_the_schedule(self, cohort):
        trainer = trainer_of(cohort, augment=False)
        inputs = inputs_of(trainer, cohort)
        clean = trainer.schedule.clean(inputs.x, inputs.target, inputs.t)
        rows = SliceOrder.from_cohort(cohort, "guided", batch=8, balanced=False, seed=0).rows(0)
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
        expected = {name: p.detach().clone() for name, p in trainer.network.named_parameters()}
        for step in range(6):
            trainer.update(inputs_of(trainer, cohort))
            decay = min(0.5, (1 + step) / (10 + step))
            for name, now in trainer.network.named_parameters():
                expected[name] = decay * expected[name] + (1 - decay) * now.detach()
        for name, average in trainer.average.named_parameters():
            torch.testing.assert_close(average, expected[name], rtol=1e-5, atol=1e-7)

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

    def test_noise_does_not_depend_on_the_number_of_processes(self, cohort, monkeypatch):
        monkeypatch.setattr(trainer_module, "DistributedDataParallel", lambda network, **_: network)  # no exchange here
        config = TrainingConfig(batch=8)
        whole, *parts = (
            inputs_of(Trainer(NETWORK, config, CPU, world), cohort) for world in (World(), World(0, 2), World(1, 2))
        )
        for tensor, *halves in zip(whole, *parts, strict=True):
            assert torch.equal(tensor, torch.cat(halves))

    def test_out_of_memory_halves_the_micro_batch_and_keeps_the_batch(self, cohort, monkeypatch):
        network = dataclasses.replace(NETWORK, dropout=0.0)
        calm, pressed = trainer_of(cohort, network), trainer_of(cohort, network)
        losses = pressed.losses

        def with_little_memory(inputs):
            if len(inputs.x) > 2:
                raise torch.OutOfMemoryError
            return losses(inputs)

        monkeypatch.setattr(pressed, "losses", with_little_memory)
        for _ in range(3):
            for trainer in (calm, pressed):
                trainer.update(inputs_of(trainer, cohort))
        assert pressed.micro_batch == 2
        notes = ["", "memory is short: 2 of 8 slices at a time, the batch size is unchanged"]
        assert [run_training.memory_note(trainer) for trainer in (calm, pressed)] == notes
        averages = [list(trainer.average.parameters()) for trainer in (calm, pressed)]
        torch.testing.assert_close(*averages, rtol=1e-3, atol=1e-5)

    def test_too_little_memory_for_one_slice_is_an_error(self, cohort, monkeypatch):
        trainer = trainer_of(cohort)
        monkeypatch.setattr(trainer, "losses", lambda _inputs: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(TrainingError, match="smaller --preset"):
            trainer.update(inputs_of(trainer, cohort))


TWO_PROCESSES = """
import gc, os, sys
import torch
from safetensors.torch import save_file
from anofpdm.cohorts import open_cohort
from anofpdm.network.training import run_training
from anofpdm.network.training.batches import SliceOrder
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.network.config import UNetConfig
from anofpdm.util.distributed import World

def train(world, out, short_of_memory=False):
    cohort, device = open_cohort(sys.argv[1]), torch.device("cpu")
    network = UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,), dropout=0.0)
    trainer = run_training.start(cohort, network, TrainingConfig(batch=8, warm_up=1), device=device, world=world)
    if short_of_memory and world.rank == world.count - 1:
        plenty = trainer.losses
        def short(inputs):
            if len(inputs.x) > 2:
                raise torch.OutOfMemoryError
            return plenty(inputs)
        trainer.losses = short
    order = SliceOrder.from_cohort(cohort, "guided", batch=8, balanced=False, seed=0)
    for step in range(3):
        rows = order.rows(step)[world.batch_slice(8)]
        inputs = trainer.inputs(torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows]))
        if step == 2:
            trainer._backward(inputs)
            break
        trainer.update(inputs)
    if world.is_main:
        save_file({name: p.grad.contiguous() for name, p in trainer.network.named_parameters()}, out)

def share(rank, one, two, short):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    world = World.from_environment(torch.device("cpu"))
    train(world, two)
    train(world, short, short_of_memory=True)
    if world.is_main:
        train(World(), one)
    gc.collect()  # whatever still holds gloo's threads when Python ends may bring the process down
    world.close()

children = []
for rank in range(2):  # forked after the imports, which take most of the time
    children += [os.fork()]
    if not children[-1]:
        share(rank, *sys.argv[2:])
        sys.exit(0)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


def test_two_processes_compute_the_gradient_of_one(cohort, tmp_path):
    """DDP over gloo on a split batch, with the environment that torchrun sets; and one process on the joined batch, two
    steps in. Also when one of the two runs out of memory: both must then work in smaller portions."""
    from safetensors.torch import load_file

    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    files = [tmp_path / name for name in ("one", "two", "short")]
    command = [sys.executable, str(script), str(cohort.path), *map(str, files)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    environment = {**os.environ, **address, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180, env=environment)
    assert done.returncode == 0, done.stderr
    of_one, of_two, of_short = map(load_file, files)
    assert sum(gradient.abs().sum() for gradient in of_one.values()) > 0
    for name, gradient in of_one.items():
        torch.testing.assert_close(gradient, of_two[name], rtol=1e-4, atol=1e-6, msg=name)
        torch.testing.assert_close(gradient, of_short[name], rtol=1e-4, atol=1e-6, msg=name)
