"""Training runs: files, resuming, interruptions, refusals."""

import dataclasses
import json
import os
import shutil
import signal

import pytest

from anofpdm.choices import Noise, Task
from anofpdm.errors import ConfigError, ModelError, TrainingError
from anofpdm.network import checkpoint
from anofpdm.network.config import ModelConfig
from anofpdm.network.predictor import load_trained
from anofpdm.network.training import run_training
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.network.unet import UNet
from anofpdm.scans.expects import ScanExpectation
from anofpdm.util.distributed import World
from tests.network.trainers import CPU, NETWORK, UNLABELLED, assert_same, new_trainer, trainer_of


def train(trainer, cohort, out, steps):
    run_training.train(trainer, cohort, out, TrainingLimits(steps=steps, log_steps=1))


def resume(out, cohort):
    return run_training.resume(out, cohort, new_trainer)


@pytest.fixture(scope="module")
def run(cohort, tmp_path_factory):
    """The folders of an uninterrupted run of nine steps, and of one of three."""
    folder = tmp_path_factory.mktemp("run")
    for name, steps in (("whole", 9), ("part", 3)):
        train(trainer_of(cohort), cohort, folder / name, steps)
    return folder


@pytest.fixture
def part(run, tmp_path):
    return shutil.copytree(run / "part", tmp_path / "part")


def check_equals_the_whole(out, cohort, run):
    """Once resumed."""
    train(resume(out, cohort), cohort, out, 9)
    (tensors, header), (expected, expected_header) = (checkpoint.load_state(folder) for folder in (out, run / "whole"))
    assert_same(tensors, expected)
    assert header == expected_header
    whole, resumed = (
        [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]
        for folder in (run / "whole", out)
    )
    assert whole == resumed
    assert not list(out.glob(".*.tmp"))


class TestRun:
    def test_files_of_a_run(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=4, log_steps=2))
        weights, header, _ = checkpoint.load_model(tmp_path)
        config = ModelConfig.from_header(header, tmp_path)
        assert (config.step, config.task, config.modalities) == (4, "guided", ("flair", "t2"))
        UNet(config.network).load_state_dict(weights)
        assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [2, 4]

    @pytest.mark.parametrize(
        "expects",
        [
            {"skull": True, "template": "mni152", "field_of_view_mm": 192.0},
            {"template_affine": (0.5,) * 12, "centre_mm": (-0.5, 1)},
            {},
        ],
    )
    def test_a_model_records_what_its_scans_have_in_common(self, cohort, tmp_path, expects):
        changed = dataclasses.replace(cohort, manifest=dataclasses.replace(cohort.manifest, expects=expects))
        train(trainer_of(changed), changed, tmp_path, 1)
        (tmp_path / "config.json").unlink()  # for people; not needed
        assert load_trained(tmp_path, CPU).expects == ScanExpectation(**expects)

    def test_a_resumed_run_equals_an_uninterrupted_one(self, cohort, part, run):
        """Also after a kill in the middle of a save, which leaves half a file."""
        (part / ".state.safetensors.123.tmp").write_bytes(b"half a file")
        assert resume(part, cohort).step == 3
        check_equals_the_whole(part, cohort, run)

    @pytest.mark.parametrize("lost", ["weights.safetensors", "config.json"])
    def test_killed_between_saving_the_state_and_the_model(self, lost, cohort, part):
        """The state is of the last step, so there is nothing to train, but the model must be written."""
        early = (part / lost).read_bytes()
        train(resume(part, cohort), cohort, part, 4)
        wanted = checkpoint.load_model(part)[0]
        for left in (None, early):
            (part / lost).unlink() if left is None else (part / lost).write_bytes(left)
            train(resume(part, cohort), cohort, part, 4)
            weights, header, digest = checkpoint.load_model(part)
            assert_same(weights, wanted)
            assert header["step"] == 4
            assert json.loads((part / "config.json").read_text())["sha256"] == digest

    @pytest.mark.parametrize("limits", [{"steps": 8}, {"minutes": 0.01, "log_steps": 10**6}])
    def test_a_non_finite_loss_keeps_the_last_good_save(self, cohort, part, limits):
        """Also where it is noticed at the end only."""
        trainer = resume(part, cohort)
        next(trainer.network.parameters()).data[0] = float("nan")
        with pytest.raises(TrainingError, match=r"non-finite loss at step \d+; the last good save"):
            run_training.train(trainer, cohort, part, TrainingLimits(**limits))
        assert checkpoint.load_state(part)[1]["step"] == 3

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_stop_request_takes_effect_at_the_end_of_a_step(self, cohort, tmp_path, run, monkeypatch, number):
        trainer = trainer_of(cohort)
        step = trainer.optimiser.step

        def interrupted():
            if trainer.step == 4:
                os.kill(os.getpid(), number)
            step()

        monkeypatch.setattr(trainer.optimiser, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(trainer, cohort, tmp_path, 9)
        assert checkpoint.load_state(tmp_path)[1]["step"] == 5
        check_equals_the_whole(tmp_path, cohort, run)

    def test_fine_tuning_starts_with_the_models_weights(self, cohort, run):
        trainer = run_training.start_from(run / "part", cohort, TrainingConfig(batch=8), new_trainer)
        assert trainer.step == 0
        assert_same(dict(trainer.network.named_parameters()), checkpoint.load_model(run / "part")[0])


class TestRefuses:
    @pytest.mark.parametrize("changed", ["preparation_sha256", "slices_sha256", "tables_sha256"])
    def test_another_cohort(self, cohort, run, changed):
        value = dict.fromkeys(cohort.manifest.tables_sha256, "other") if changed == "tables_sha256" else "other"
        other = dataclasses.replace(cohort, manifest=dataclasses.replace(cohort.manifest, **{changed: value}))
        with pytest.raises(ModelError, match="another cohort"):
            resume(run / "part", other)

    def test_weights_that_do_not_fit_their_network(self, cohort, part):
        weights, header, _ = checkpoint.load_model(part)
        checkpoint.save_model(part, {name: tensor for name, tensor in weights.items() if "last" not in name}, header)
        with pytest.raises(ModelError, match="do not fit the network"):
            run_training.start_from(part, cohort, TrainingConfig(batch=8), new_trainer)
        tensors, header = checkpoint.load_state(part)
        checkpoint.save_state(part, {name: tensor[:1] for name, tensor in tensors.items()}, header)
        with pytest.raises(ModelError, match="do not fit the network"):
            resume(part, cohort)

    def test_models_that_cannot_be_fine_tuned(self, cohort, run, tmp_path):
        def start_from(folder, config=TrainingConfig(), cohort=cohort):  # noqa: B008
            return run_training.start_from(folder, cohort, config, new_trainer)

        preparation = dataclasses.replace(cohort.manifest.preparation, modalities=("t1", "t2"))
        other = dataclasses.replace(cohort, manifest=dataclasses.replace(cohort.manifest, preparation=preparation))
        with pytest.raises(ModelError, match=r"trained on flair, t2, .* has t1, t2"):
            start_from(run / "part", cohort=other)
        with pytest.raises(ModelError, match="cannot be fine-tuned for task 'classifier'"):
            start_from(run / "part", TrainingConfig(task=Task.CLASSIFIER))
        train(trainer_of(cohort, UNLABELLED, task=Task.UNCONDITIONAL), cohort, tmp_path / "unlabelled", 1)
        with pytest.raises(ModelError, match="trained without labels"):
            start_from(tmp_path / "unlabelled")
        (tmp_path / "student").mkdir()
        checkpoint.save_model(tmp_path / "student", {}, {"format": checkpoint.FORMAT, "task": "student"})
        for folder, reason in ((tmp_path, "has a student only"), (tmp_path / "student", r"task 'student'.*--from")):
            with pytest.raises(ModelError, match=reason):
                start_from(folder)

    def test_slices_that_the_network_cannot_halve(self, cohort):
        with pytest.raises(ModelError, match="multiple of 64"):
            trainer_of(cohort, dataclasses.replace(NETWORK, multipliers=(1,) * 7))

    @pytest.mark.parametrize("changes", [{"training": {"momentum": 0.9}}, {"training": 3}, {"network": {"x": 1}}])
    def test_a_state_of_another_version(self, cohort, part, changes):
        tensors, header = checkpoint.load_state(part)
        checkpoint.save_state(part, tensors, {**header, **changes})
        with pytest.raises(ModelError, match="of another version"):
            resume(part, cohort)

    def test_a_model_of_another_noise(self, cohort, tmp_path):
        train(trainer_of(cohort, UNLABELLED, task=Task.HEALTHY, noise=Noise.SIMPLEX), cohort, tmp_path, 1)
        message = "with simplex noise; needed is a model for task 'healthy' with gaussian noise"
        with pytest.raises(ModelError, match=message):
            load_trained(tmp_path, CPU, task="healthy")
        load_trained(tmp_path, CPU, task="healthy", noise="simplex")

    @pytest.mark.parametrize(
        "wrong",
        [{"task": "classifier", "noise": "simplex"}, {"batch": 0}, {"learning_rate": 0.0}, {"null_share": 1.0}],
    )
    def test_impossible_settings(self, wrong):
        with pytest.raises(ConfigError):
            TrainingConfig(**wrong)

    def test_a_batch_that_cannot_be_split(self):
        with pytest.raises(TrainingError, match="cannot be split evenly over 3"):
            Trainer(NETWORK, TrainingConfig(batch=8), CPU, World(0, 3))

    def test_training_ends_at_steps_or_minutes(self):
        """Whichever is reached first; steps of earlier runs do not count."""
        limits = TrainingLimits(steps=100, minutes=1.0)
        fractions = [limits.fraction_done(*done) for done in ((50, 6.0), (5, 30.0), (75, 6.0, 50), (50, 60.0, 50))]
        assert fractions == [0.5, 0.5, 0.5, 1.0]
