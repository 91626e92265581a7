import dataclasses
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.errors import ConfigError, ModelError, TrainingError
from anofpdm.network import checkpoint
from anofpdm.network.classifier import build_network
from anofpdm.network.config import UNetConfig
from anofpdm.network.predictor import load_trained
from anofpdm.network.simplex import random_permutations, simplex_noise
from anofpdm.network.training import run
from anofpdm.network.training.batches import SliceOrder
from anofpdm.network.training.config import TrainingConfig, TrainingLimits
from anofpdm.network.training.log import TrainingLog, TrainingStatus, loss_jump
from anofpdm.network.training.trainer import Trainer
from anofpdm.options import Noise, Task
from anofpdm.util.distributed import World

CPU = torch.device("cpu")
NETWORK = UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,))
UNLABELLED = dataclasses.replace(NETWORK, n_labels=1, null_label=0)
QUIET: dict[str, Any] = {"log_steps": 1, "sample_steps": 0}


def trainer_of(cohort: Cohort, network: UNetConfig = NETWORK, **options) -> Trainer:
    config = TrainingConfig(**{"batch": 8, "warm_up": 3, **options})
    return run.start(cohort, network, config, device=CPU, world=World())


def inputs_of(trainer: Trainer, cohort: Cohort):
    order = SliceOrder.from_cohort(cohort, trainer.config.task, batch=8, balanced=False, seed=0)
    rows = order.rows(trainer.step)[trainer.world.batch_slice(8)]
    return trainer.inputs(torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows]))


def assert_same(one: dict, other: dict):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0, msg=name)


def noise_statistics(fields: torch.Tensor) -> tuple[float, float]:
    """Variance, and correlation of neighbouring pixels, of [B, H, W]."""
    return float(fields.var()), float(np.corrcoef(fields[:, 1:].flatten(), fields[:, :-1].flatten())[0, 1])


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
        levels, withheld, known = [], 0, 0
        for trainer.step in range(400):
            inputs = inputs_of(trainer, cohort)
            levels.append(inputs.t)
            withheld += int((inputs.labels == 2).sum())
            known += int((inputs.labels != 2).sum())
        assert np.histogram(torch.cat(levels), bins=10, range=(0, 1000))[0].min() > 250  # 320 expected
        assert withheld / (withheld + known) == pytest.approx(0.25, abs=0.03)

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
        for name, average in trainer.average.items():
            torch.testing.assert_close(average, expected[name], rtol=1e-5, atol=1e-7)

    def test_the_learning_rate_warms_up(self, cohort):
        trainer, rates = trainer_of(cohort, warm_up=4, learning_rate=1e-3), []
        for _ in range(6):
            trainer.update(inputs_of(trainer, cohort))
            rates.append(trainer.optimiser.param_groups[0]["lr"])
        np.testing.assert_allclose(rates, [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])

    def test_the_loss_falls(self, cohort):
        trainer = trainer_of(cohort, learning_rate=3e-3, augment=False)
        losses = [trainer.update(inputs_of(trainer, cohort)).item() for _ in range(150)]
        assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:5])

    @pytest.mark.parametrize("task", ["unconditional", "healthy", "classifier"])
    def test_the_loss_falls_for_other_tasks(self, cohort, task):
        trainer = trainer_of(cohort, UNLABELLED, task=task, learning_rate=3e-3)
        losses = [trainer.update(inputs_of(trainer, cohort)).item() for _ in range(120)]
        assert np.mean(losses[-20:]) < 0.9 * np.mean(losses[:5])

    def test_training_with_simplex_noise(self, cohort):
        trainer = trainer_of(cohort, UNLABELLED, task="healthy", noise="simplex", augment=False, learning_rate=3e-3)
        steps, losses = [], []
        for _ in range(40):
            steps.append(inputs_of(trainer, cohort))
            losses.append(trainer.update(steps[-1]).item())
        for inputs in steps:
            clean = trainer.schedule.clean(inputs.x, inputs.target, inputs.t)[inputs.t < 500]
            assert clean.abs().max() < 1.001  # x is the slice plus that noise
        seen = torch.cat([inputs.target.flatten(0, 1) for inputs in steps])
        levels = torch.cat([inputs.t.repeat_interleave(2) for inputs in steps])
        fields = random_permutations(len(seen), torch.Generator().manual_seed(1))
        variance, alike = noise_statistics(seen)
        expected_variance, expected_alike = noise_statistics(simplex_noise(fields, levels, 16, 16))
        assert variance == pytest.approx(expected_variance, rel=0.1)
        assert alike == pytest.approx(expected_alike, abs=0.03)
        assert alike > 0.5  # of neighbours; plain noise would have 0
        assert len(seen.unique(dim=0)) == len(seen)  # each slice, channel and step its own
        assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:5])

    @pytest.mark.parametrize("noise", ["gaussian", "simplex"])
    def test_noise_does_not_depend_on_the_number_of_processes(self, cohort, noise, monkeypatch):
        monkeypatch.setattr(Trainer, "_distributed", lambda trainer: trainer.network)  # nothing is exchanged here
        config = TrainingConfig(batch=8, noise=noise)
        whole, *parts = (
            inputs_of(Trainer(build_network("guided", NETWORK), config, CPU, world), cohort)
            for world in (World(), World(0, 2), World(1, 2))
        )
        for tensor, *both in zip(whole.tensors, *(part.tensors for part in parts), strict=True):
            assert torch.equal(tensor, torch.cat(both))

    def test_micro_batches_give_the_same_gradient(self, cohort):
        network = dataclasses.replace(NETWORK, dropout=0.0)
        whole, portions = trainer_of(cohort, network), trainer_of(cohort, network)
        portions.micro_batch = 3
        losses = [trainer._backward(inputs_of(trainer, cohort)) for trainer in (whole, portions)]
        torch.testing.assert_close(losses[0], losses[1])
        for one, other in zip(whole.network.parameters(), portions.network.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)

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
        assert run.memory_note(pressed) == "memory is short: 2 of 8 slices at a time, the batch size is unchanged"
        assert run.memory_note(calm) == ""
        for name, average in calm.average.items():
            torch.testing.assert_close(average, pressed.average[name], rtol=1e-3, atol=1e-5)

    def test_too_little_memory_for_one_slice_is_an_error(self, cohort, monkeypatch):
        trainer = trainer_of(cohort)
        monkeypatch.setattr(trainer, "losses", lambda _inputs: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(TrainingError, match="smaller --preset"):
            trainer.update(inputs_of(trainer, cohort))


class TestLossJump:
    @staticmethod
    def logged(folder, losses):
        log = TrainingLog(folder, 0)
        for number, loss in enumerate(losses):
            log.write(TrainingStatus(50 * (number + 1), float(loss), 10.0, 0.5))
        log.close()
        return loss_jump(folder)

    @pytest.fixture
    def losses(self):
        """Falling from 0.2 to 0.005; single batches differ by a factor of two."""
        noise = np.random.default_rng(3).standard_normal(100)
        return (0.2 * np.exp(-np.arange(100) / 5) + 0.005) * np.exp(0.35 * noise)

    def test_a_falling_loss_has_no_jump(self, losses, tmp_path):
        assert self.logged(tmp_path, losses) is None

    def test_a_jump_is_located(self, losses, tmp_path):
        losses[80:] += 0.07 * np.exp(-np.arange(20) / 20)
        jump = self.logged(tmp_path, losses)
        assert jump.step == 50 * 81
        assert 0.004 < jump.before < 0.006
        assert jump.after > 0.04

    def test_a_jump_near_the_end_is_found_too(self, losses, tmp_path):
        losses[97:] += 0.07
        assert self.logged(tmp_path, losses).step == 50 * 98

    def test_one_bad_batch_is_no_jump(self, losses, tmp_path):
        losses[80] = 1.0
        assert self.logged(tmp_path, losses) is None

    def test_a_short_log_or_an_incomplete_line_gives_no_jump(self, losses, tmp_path):
        assert loss_jump(tmp_path) is None
        assert self.logged(tmp_path, losses[:10]) is None
        with (tmp_path / "log.jsonl").open("a") as file:
            file.write('{"step": 550, "lo')
        assert loss_jump(tmp_path) is None


class TestRun:
    def test_files_of_a_run(self, cohort, tmp_path):
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=4, log_steps=2, sample_steps=2))
        weights, payload, _ = checkpoint.load_model(tmp_path)
        assert (payload["step"], payload["task"], payload["modalities"]) == (4, "guided", ["flair", "t2"])
        network = build_network("guided", UNetConfig.from_dict(payload["network"]))
        network.load_state_dict(weights)
        assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [2, 4]
        assert Image.open(tmp_path / "samples.png").size[0] > 4 * 2 * 16
        assert Image.open(tmp_path / "loss_by_level.png").size[0] > 100

    def test_a_resumed_run_equals_an_uninterrupted_one(self, cohort, tmp_path):
        run.train(trainer_of(cohort), cohort, tmp_path / "whole", TrainingLimits(steps=9, **QUIET))
        run.train(trainer_of(cohort), cohort, tmp_path / "parts", TrainingLimits(steps=4, **QUIET))
        again = run.resume(tmp_path / "parts", cohort, device=CPU, world=World())
        assert again.step == 4
        run.train(again, cohort, tmp_path / "parts", TrainingLimits(steps=9, **QUIET))
        assert_same(checkpoint.load_state(tmp_path / "whole")[0], checkpoint.load_state(tmp_path / "parts")[0])
        logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
        whole, parts = ([json.loads(line)["loss"] for line in log] for log in logs)
        assert whole == parts

    def test_killed_in_the_middle_of_a_save(self, cohort, tmp_path):
        """20 steps equal 12, a kill -9 during the next save, and 8 more."""
        (tmp_path / "script.py").write_text(SCRIPT)

        def start(out, *words):
            command = [sys.executable, str(tmp_path / "script.py"), str(cohort.path), str(tmp_path / out), *words]
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

        assert start("whole", "20").returncode == 0
        assert start("parts", "12").returncode == 0
        killed = start("parts", "16", "--resume", "--die")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list((tmp_path / "parts").glob(".*.tmp"))  # half a file
        assert checkpoint.load_state(tmp_path / "parts")[1]["step"] == 12
        assert start("parts", "20", "--resume").returncode == 0
        one, other = (checkpoint.load_state(tmp_path / name) for name in ("whole", "parts"))
        assert one[1] == other[1]
        assert_same(one[0], other[0])
        assert not list((tmp_path / "parts").glob(".*.tmp"))

    @pytest.mark.parametrize("lost", ["weights.safetensors", "config.json"])
    def test_killed_between_saving_the_state_and_the_model(self, lost, cohort, tmp_path):
        """The state is of the last step, so there is nothing to train, but the model must be written."""
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=3, **QUIET))
        early = {name: (tmp_path / name).read_bytes() for name in ("weights.safetensors", "config.json")}
        again = run.resume(tmp_path, cohort, device=CPU, world=World())
        run.train(again, cohort, tmp_path, TrainingLimits(steps=5, **QUIET))
        wanted = checkpoint.load_model(tmp_path)[0]
        for left in ("missing", "of an earlier save"):
            if left == "missing":
                (tmp_path / lost).unlink()
            else:
                (tmp_path / lost).write_bytes(early[lost])
            again = run.resume(tmp_path, cohort, device=CPU, world=World())
            run.train(again, cohort, tmp_path, TrainingLimits(steps=5, **QUIET))
            found, payload, digest = checkpoint.load_model(tmp_path)
            assert_same(found, wanted)
            assert payload["step"] == 5
            assert json.loads((tmp_path / "config.json").read_text())["sha256"] == digest

    def test_a_non_finite_loss_keeps_the_last_good_save(self, cohort, tmp_path):
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=3, **QUIET))
        trainer = run.resume(tmp_path, cohort, device=CPU, world=World())
        next(trainer.network.parameters()).data[0] = float("nan")
        with pytest.raises(TrainingError, match="non-finite loss at step 4; the last good save"):
            run.train(trainer, cohort, tmp_path, TrainingLimits(steps=8, **QUIET))
        assert checkpoint.load_state(tmp_path)[1]["step"] == 3

    def test_ctrl_c_saves(self, cohort, tmp_path):
        def interrupt(_task, _done, _total, note=""):
            if note.startswith("step 5 "):
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=50, **QUIET), interrupt)
        assert checkpoint.load_state(tmp_path)[1]["step"] == 5

    def test_a_stop_request_takes_effect_at_the_end_of_a_step(self, cohort, tmp_path, monkeypatch):
        run.train(trainer_of(cohort), cohort, tmp_path / "whole", TrainingLimits(steps=9, **QUIET))
        trainer = trainer_of(cohort)
        step = trainer.optimiser.step

        def interrupted():
            if trainer.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            step()

        monkeypatch.setattr(trainer.optimiser, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.train(trainer, cohort, tmp_path / "parts", TrainingLimits(steps=9, **QUIET))
        again = run.resume(tmp_path / "parts", cohort, device=CPU, world=World())
        assert again.step == 5
        run.train(again, cohort, tmp_path / "parts", TrainingLimits(steps=9, **QUIET))
        assert_same(checkpoint.load_state(tmp_path / "whole")[0], checkpoint.load_state(tmp_path / "parts")[0])

    def test_a_non_finite_loss_is_an_error_at_the_end(self, cohort, tmp_path):
        trainer = trainer_of(cohort)
        next(trainer.network.parameters()).data[0] = float("nan")
        with pytest.raises(TrainingError, match="non-finite loss"):
            run.train(trainer, cohort, tmp_path, TrainingLimits(minutes=0.01, log_steps=10**6, sample_steps=0))
        assert not list(tmp_path.glob("*.safetensors"))

    def test_minutes(self, cohort, tmp_path):
        trainer = trainer_of(cohort)
        run.train(trainer, cohort, tmp_path, TrainingLimits(minutes=0.02, **QUIET))
        assert trainer.step >= 1

    def test_fine_tuning_starts_with_the_models_weights(self, cohort, tmp_path):
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=3, **QUIET))
        weights, _, _ = checkpoint.load_model(tmp_path)
        trainer = run.start_from(tmp_path, cohort, TrainingConfig(batch=8), device=CPU, world=World())
        assert trainer.step == 0
        assert_same(dict(trainer.network.named_parameters()), weights)


SCRIPT = """
import os, signal, sys
from pathlib import Path
from typing import Any
import torch
from anofpdm.util import files
from anofpdm.cohorts import open_cohort
from anofpdm.network import checkpoint
from anofpdm.network.training import run
from anofpdm.network.training.config import TrainingConfig, TrainingLimits
from anofpdm.network.config import UNetConfig
from anofpdm.util.distributed import World

cohort, out, steps = open_cohort(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
where = {"device": torch.device("cpu"), "world": World()}
network = UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,))
if "--resume" in sys.argv:
    trainer = run.resume(out, cohort, **where)
else:
    trainer = run.start(cohort, network, TrainingConfig(batch=8, warm_up=5), **where)
if "--die" in sys.argv:
    def torn(tensors, path, metadata):
        Path(path).write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.save_file = torn
run.train(trainer, cohort, out, TrainingLimits(steps=steps, log_steps=4, sample_steps=0))
"""

TWO_PROCESSES = """
import gc, sys
from pathlib import Path
from typing import Any
import torch
from safetensors.torch import save_file
from anofpdm.cohorts import open_cohort
from anofpdm.network.training import run
from anofpdm.network.training.batches import SliceOrder
from anofpdm.network.training.config import TrainingConfig, TrainingLimits
from anofpdm.network.config import UNetConfig
from anofpdm.util.distributed import World

def train(world):
    cohort, device = open_cohort(sys.argv[1]), torch.device("cpu")
    network = UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,), dropout=0.0)
    trainer = run.start(cohort, network, TrainingConfig(batch=8, warm_up=1), device=device, world=world)
    if "--short" in sys.argv and world.rank == world.count - 1:
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
        save_file({name: p.grad.contiguous() for name, p in trainer.network.named_parameters()}, sys.argv[2])

world = World.from_environment(torch.device("cpu"))
train(world)
gc.collect()  # whatever still holds gloo's threads when Python ends may bring the process down
world.close()
"""


def test_two_processes_compute_the_gradient_of_one(cohort, tmp_path):
    """DDP over gloo, as torchrun starts it, on a split batch; and one process on the joined batch, two steps in. Also
    when one of the two runs out of memory: both must then work in smaller portions."""
    from safetensors.torch import load_file

    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    launchers = {
        "one": [sys.executable],
        "two": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
    }
    launchers["short"] = launchers["two"]
    for name, launcher in launchers.items():
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [*launcher, str(script), str(cohort.path), str(tmp_path / name), f"--{name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
    one, two, short = (load_file(tmp_path / name) for name in ("one", "two", "short"))
    assert sum(gradient.abs().sum() for gradient in one.values()) > 0
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6, msg=name)
        torch.testing.assert_close(one[name], short[name], rtol=1e-4, atol=1e-6, msg=name)


def test_tensorboard_is_written_if_installed(cohort, tmp_path, monkeypatch):
    calls: list[tuple] = []

    class Board:
        def __init__(self, folder, purge_step):
            calls.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, step, value))

        def close(self):
            calls.append(("closed",))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Board))
    run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=2, **QUIET))
    assert calls[0] == (tmp_path / "tensorboard", 1)
    assert [call[1] for call in calls[1:] if call[0] == "loss"] == [1, 2]
    assert calls[-1] == ("closed",)


class TestRefuses:
    def test_another_cohort(self, cohort, tmp_path):
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        for changed in ("preparation_sha256", "slices_sha256", "tables_sha256"):
            other = dataclasses.replace(cohort, manifest={**cohort.manifest, changed: "other"})
            with pytest.raises(ModelError, match="another cohort"):
                run.resume(tmp_path, other, device=CPU, world=World())

    def test_weights_of_another_network(self, cohort):
        trainer = trainer_of(cohort)
        weights = {name: parameter for name, parameter in trainer.network.named_parameters() if "last" not in name}
        with pytest.raises(ModelError, match="do not fit this network"):
            trainer.load_weights(weights)

    def test_guiding_a_model_without_labels(self, cohort, tmp_path):
        trainer = trainer_of(cohort, UNLABELLED, task="unconditional")
        run.train(trainer, cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        with pytest.raises(ModelError, match="cannot be guided"):
            run.start_from(tmp_path, cohort, TrainingConfig(batch=8), device=CPU, world=World())

    def test_other_channels(self, cohort, tmp_path):
        with pytest.raises(ModelError, match="has 2 modalities, the network takes 4"):
            trainer_of(cohort, dataclasses.replace(NETWORK, in_channels=4))
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        preparation = {**cohort.manifest["preparation"], "modalities": ["t1", "t2"]}
        other = dataclasses.replace(cohort, manifest={**cohort.manifest, "preparation": preparation})
        with pytest.raises(ModelError, match=r"trained on flair, t2, .* has t1, t2"):
            run.start_from(tmp_path, other, TrainingConfig(), device=CPU, world=World())

    def test_a_side_that_cannot_be_halved(self, cohort):
        with pytest.raises(ModelError, match="needs a multiple of 64"):
            trainer_of(cohort, dataclasses.replace(NETWORK, multipliers=(1,) * 7))

    def test_a_model_of_another_kind(self, cohort, tmp_path):
        run.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        with pytest.raises(ModelError, match="cannot be fine-tuned for task 'classifier'"):
            run.start_from(tmp_path, cohort, TrainingConfig(task=Task.CLASSIFIER), device=CPU, world=World())

    def test_an_unknown_noise(self):
        with pytest.raises(ConfigError, match="a classifier is trained with gaussian noise, not simplex"):
            TrainingConfig(task=Task.CLASSIFIER, noise=Noise.SIMPLEX)
        with pytest.raises(ConfigError, match="unknown noise 'white'; choose one of gaussian, simplex"):
            TrainingConfig(noise="white")  # type: ignore[arg-type]

    def test_a_model_of_another_noise(self, cohort, tmp_path):
        trainer = trainer_of(cohort, UNLABELLED, task="healthy", noise="simplex")
        run.train(trainer, cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        with pytest.raises(
            ModelError, match="with simplex noise; needed is a model for task 'healthy' with gaussian noise"
        ):
            load_trained(tmp_path, CPU, task="healthy")
        load_trained(tmp_path, CPU, task="healthy", noise="simplex")

    @pytest.mark.parametrize("wrong", [{"task": "x"}, {"batch": 0}, {"learning_rate": 0.0}, {"null_share": 1.0}])
    def test_impossible_settings(self, wrong):
        with pytest.raises(ConfigError):
            TrainingConfig(**wrong)

    def test_a_batch_that_cannot_be_split(self):
        with pytest.raises(TrainingError, match="cannot be split evenly over 3"):
            Trainer(build_network("guided", NETWORK), TrainingConfig(batch=8), CPU, World(0, 3))

    def test_no_limit(self):
        with pytest.raises(ConfigError, match="--steps or --minutes"):
            TrainingLimits()


def test_training_needs_only_torch_numpy_and_safetensors(cohort, tmp_path):
    """Without nibabel and terminal libraries, as on a GPU machine."""
    script = tmp_path / "script.py"
    absent = ["nibabel", "nilearn", "typer", "rich", "pydantic", "zlib_ng"]
    script.write_text(f"import sys; sys.modules.update(dict.fromkeys({absent}))\n{SCRIPT}")
    command = [sys.executable, str(script), str(cohort.path), str(tmp_path / "out"), "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert isinstance(open_cohort(Path(cohort.path)), Cohort)
