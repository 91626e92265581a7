"""Training runs: files, resuming, interruptions, refusals."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.errors import ConfigError, ModelError, TrainingError
from anofpdm.network import checkpoint
from anofpdm.network.classifier import build_network
from anofpdm.network.config import UNetConfig
from anofpdm.network.predictor import load_trained
from anofpdm.network.training import run_training
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.options import Noise, Task
from anofpdm.scans.expects import ScanExpectation
from anofpdm.util.distributed import World
from tests.network.trainers import CPU, NETWORK, QUIET, UNLABELLED, assert_same, trainer_of


class TestRun:
    def test_files_of_a_run(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=4, log_steps=2, sample_steps=2))
        weights, payload, _ = checkpoint.load_model(tmp_path)
        assert (payload["step"], payload["task"], payload["modalities"]) == (4, "guided", ["flair", "t2"])
        network = build_network("guided", UNetConfig.from_dict(payload["network"]))
        network.load_state_dict(weights)
        assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [2, 4]
        assert Image.open(tmp_path / "samples.png").size[0] > 4 * 2 * 16
        assert Image.open(tmp_path / "loss_by_level.png").size[0] > 100

    def test_a_model_records_what_its_scans_have_in_common(self, cohort, tmp_path):
        expects = {"skull": True, "template": "mni152", "field_of_view_mm": 192.0, "orientation": "axial"}
        changed = dataclasses.replace(cohort, manifest={**cohort.manifest, "expects": expects})
        run_training.train(trainer_of(changed), changed, tmp_path, TrainingLimits(steps=1, **QUIET))
        assert load_trained(tmp_path, CPU).expects == ScanExpectation(True, "mni152", 192.0)
        there = {"template_affine": [0.5] * 12, "centre_mm": [-0.5, 1]}
        moved = dataclasses.replace(cohort, manifest={**cohort.manifest, "expects": there})
        run_training.train(trainer_of(moved), moved, tmp_path / "moved", TrainingLimits(steps=1, **QUIET))
        assert load_trained(tmp_path / "moved", CPU).expects == ScanExpectation(
            template_affine=(0.5,) * 12, centre_mm=(-0.5, 1)
        )

    def test_a_model_without_expectations_has_the_defaults(self, cohort, tmp_path):
        older = {name: value for name, value in cohort.manifest.items() if name != "expects"}
        changed = dataclasses.replace(cohort, manifest=older)
        run_training.train(trainer_of(changed), changed, tmp_path, TrainingLimits(steps=1, **QUIET))
        assert load_trained(tmp_path, CPU).expects == ScanExpectation()
        (tmp_path / "config.json").unlink()  # for people; not needed
        assert load_trained(tmp_path, CPU).expects == ScanExpectation()

    @pytest.mark.parametrize(
        ("expects", "reason"),
        [
            ({"template": "talairach"}, r"talairach.*known are mni152"),
            ({"template_affine": [1.0] * 9}, "not 12 finite numbers"),
            ({"template_affine": [1.0] * 11 + ["a"]}, "template_affine"),
            ({"template_affine": 1.0}, "invalid configuration"),
            ({"centre_mm": [float("nan"), 1.0]}, "not 2 finite numbers"),
        ],
    )
    def test_expectations_that_are_not_known_are_refused(self, cohort, tmp_path, expects, reason):
        changed = dataclasses.replace(cohort, manifest={**cohort.manifest, "expects": expects})
        run_training.train(trainer_of(changed), changed, tmp_path, TrainingLimits(steps=1, **QUIET))
        with pytest.raises(ModelError, match=reason):
            load_trained(tmp_path, CPU)

    def test_a_resumed_run_equals_an_uninterrupted_one(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path / "whole", TrainingLimits(steps=9, **QUIET))
        run_training.train(trainer_of(cohort), cohort, tmp_path / "parts", TrainingLimits(steps=4, **QUIET))
        again = run_training.resume(tmp_path / "parts", cohort, device=CPU, world=World())
        assert again.step == 4
        run_training.train(again, cohort, tmp_path / "parts", TrainingLimits(steps=9, **QUIET))
        assert_same(checkpoint.load_state(tmp_path / "whole")[0], checkpoint.load_state(tmp_path / "parts")[0])
        logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
        whole, parts = ([json.loads(line)["loss"] for line in log] for log in logs)
        assert whole == parts

    def test_killed_in_the_middle_of_a_save(self, cohort, tmp_path):
        """20 steps equal 12, a kill -9 during the next save, and 8 more."""
        limits = {steps: TrainingLimits(steps=steps, log_steps=4, sample_steps=0) for steps in (12, 20)}
        run_training.train(trainer_of(cohort), cohort, tmp_path / "whole", limits[20])
        run_training.train(trainer_of(cohort), cohort, tmp_path / "parts", limits[12])
        (tmp_path / "script.py").write_text(RESUME_AND_DIE)
        command = [sys.executable, str(tmp_path / "script.py"), str(cohort.path), str(tmp_path / "parts")]
        killed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list((tmp_path / "parts").glob(".*.tmp"))  # half a file
        assert checkpoint.load_state(tmp_path / "parts")[1]["step"] == 12
        again = run_training.resume(tmp_path / "parts", cohort, device=CPU, world=World())
        run_training.train(again, cohort, tmp_path / "parts", limits[20])
        one, other = (checkpoint.load_state(tmp_path / name) for name in ("whole", "parts"))
        assert one[1] == other[1]
        assert_same(one[0], other[0])
        assert not list((tmp_path / "parts").glob(".*.tmp"))

    @pytest.mark.parametrize("lost", ["weights.safetensors", "config.json"])
    def test_killed_between_saving_the_state_and_the_model(self, lost, cohort, tmp_path):
        """The state is of the last step, so there is nothing to train, but the model must be written."""
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=3, **QUIET))
        early = {name: (tmp_path / name).read_bytes() for name in ("weights.safetensors", "config.json")}
        again = run_training.resume(tmp_path, cohort, device=CPU, world=World())
        run_training.train(again, cohort, tmp_path, TrainingLimits(steps=5, **QUIET))
        wanted = checkpoint.load_model(tmp_path)[0]
        for left in ("missing", "of an earlier save"):
            if left == "missing":
                (tmp_path / lost).unlink()
            else:
                (tmp_path / lost).write_bytes(early[lost])
            again = run_training.resume(tmp_path, cohort, device=CPU, world=World())
            run_training.train(again, cohort, tmp_path, TrainingLimits(steps=5, **QUIET))
            found, payload, digest = checkpoint.load_model(tmp_path)
            assert_same(found, wanted)
            assert payload["step"] == 5
            assert json.loads((tmp_path / "config.json").read_text())["sha256"] == digest

    def test_a_non_finite_loss_keeps_the_last_good_save(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=3, **QUIET))
        trainer = run_training.resume(tmp_path, cohort, device=CPU, world=World())
        next(trainer.network.parameters()).data[0] = float("nan")
        with pytest.raises(TrainingError, match="non-finite loss at step 4; the last good save"):
            run_training.train(trainer, cohort, tmp_path, TrainingLimits(steps=8, **QUIET))
        assert checkpoint.load_state(tmp_path)[1]["step"] == 3

    def test_ctrl_c_saves(self, cohort, tmp_path):
        def interrupt(_task, _done, _total, note=""):
            if note.startswith("step 5 "):
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=50, **QUIET), interrupt)
        assert checkpoint.load_state(tmp_path)[1]["step"] == 5

    def test_a_stop_request_takes_effect_at_the_end_of_a_step(self, cohort, tmp_path, monkeypatch):
        run_training.train(trainer_of(cohort), cohort, tmp_path / "whole", TrainingLimits(steps=9, **QUIET))
        trainer = trainer_of(cohort)
        step = trainer.optimiser.step

        def interrupted():
            if trainer.step == 4:
                os.kill(os.getpid(), signal.SIGTERM)
            step()

        monkeypatch.setattr(trainer.optimiser, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_training.train(trainer, cohort, tmp_path / "parts", TrainingLimits(steps=9, **QUIET))
        again = run_training.resume(tmp_path / "parts", cohort, device=CPU, world=World())
        assert again.step == 5
        run_training.train(again, cohort, tmp_path / "parts", TrainingLimits(steps=9, **QUIET))
        assert_same(checkpoint.load_state(tmp_path / "whole")[0], checkpoint.load_state(tmp_path / "parts")[0])

    def test_a_non_finite_loss_is_an_error_at_the_end(self, cohort, tmp_path):
        trainer = trainer_of(cohort)
        next(trainer.network.parameters()).data[0] = float("nan")
        with pytest.raises(TrainingError, match="non-finite loss"):
            run_training.train(trainer, cohort, tmp_path, TrainingLimits(minutes=0.01, log_steps=10**6, sample_steps=0))
        assert not list(tmp_path.glob("*.safetensors"))

    def test_minutes(self, cohort, tmp_path):
        trainer = trainer_of(cohort)
        run_training.train(trainer, cohort, tmp_path, TrainingLimits(minutes=0.02, **QUIET))
        assert trainer.step >= 1

    def test_fine_tuning_starts_with_the_models_weights(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=3, **QUIET))
        weights, _, _ = checkpoint.load_model(tmp_path)
        trainer = run_training.start_from(tmp_path, cohort, TrainingConfig(batch=8), device=CPU, world=World())
        assert trainer.step == 0
        assert_same(dict(trainer.network.named_parameters()), weights)


RESUME_AND_DIE = """
import os, signal, sys
from pathlib import Path
import torch
from anofpdm.cohorts import open_cohort
from anofpdm.network import checkpoint
from anofpdm.network.training import run
from anofpdm.network.training.training_config import TrainingLimits
from anofpdm.util.distributed import World

def torn(tensors, path, metadata):
    Path(path).write_bytes(b"half a file")
    os.kill(os.getpid(), signal.SIGKILL)

cohort, out = open_cohort(sys.argv[1]), Path(sys.argv[2])
trainer = run.resume(out, cohort, device=torch.device("cpu"), world=World())
checkpoint.save_file = torn
run.train(trainer, cohort, out, TrainingLimits(steps=16, log_steps=4, sample_steps=0))
"""

TRAIN = """
from pathlib import Path
import torch
from anofpdm.cohorts import open_cohort
from anofpdm.network.config import UNetConfig
from anofpdm.network.training import run
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.util.distributed import World

cohort, network = open_cohort(sys.argv[1]), UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,))
trainer = run.start(cohort, network, TrainingConfig(batch=8), device=torch.device("cpu"), world=World())
run.train(trainer, cohort, Path(sys.argv[2]), TrainingLimits(steps=2, log_steps=4, sample_steps=0))
"""


class TestRefuses:
    def test_another_cohort(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        for changed in ("preparation_sha256", "slices_sha256", "tables_sha256"):
            other = dataclasses.replace(cohort, manifest={**cohort.manifest, changed: "other"})
            with pytest.raises(ModelError, match="another cohort"):
                run_training.resume(tmp_path, other, device=CPU, world=World())

    def test_weights_of_another_network(self, cohort):
        trainer = trainer_of(cohort)
        weights = {name: parameter for name, parameter in trainer.network.named_parameters() if "last" not in name}
        with pytest.raises(ModelError, match="do not fit this network"):
            trainer.load_weights(weights)

    def test_guiding_a_model_without_labels(self, cohort, tmp_path):
        trainer = trainer_of(cohort, UNLABELLED, task="unconditional")
        run_training.train(trainer, cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        with pytest.raises(ModelError, match="cannot be guided"):
            run_training.start_from(tmp_path, cohort, TrainingConfig(batch=8), device=CPU, world=World())

    def test_other_channels(self, cohort, tmp_path):
        with pytest.raises(ModelError, match="has 2 modalities, the network takes 4"):
            trainer_of(cohort, dataclasses.replace(NETWORK, in_channels=4))
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        preparation = {**cohort.manifest["preparation"], "modalities": ["t1", "t2"]}
        other = dataclasses.replace(cohort, manifest={**cohort.manifest, "preparation": preparation})
        with pytest.raises(ModelError, match=r"trained on flair, t2, .* has t1, t2"):
            run_training.start_from(tmp_path, other, TrainingConfig(), device=CPU, world=World())

    def test_a_side_that_cannot_be_halved(self, cohort):
        with pytest.raises(ModelError, match="needs a multiple of 64"):
            trainer_of(cohort, dataclasses.replace(NETWORK, multipliers=(1,) * 7))

    def test_a_model_of_another_kind(self, cohort, tmp_path):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        with pytest.raises(ModelError, match="cannot be fine-tuned for task 'classifier'"):
            run_training.start_from(tmp_path, cohort, TrainingConfig(task=Task.CLASSIFIER), device=CPU, world=World())

    def test_a_student_in_place_of_a_model(self, cohort, tmp_path):
        (tmp_path / "student").mkdir()
        checkpoint.save_model(tmp_path / "student", {}, {"format": checkpoint.FORMAT, "task": "student"})
        for folder, reason in ((tmp_path, "has a student only"), (tmp_path / "student", r"task 'student'.*--from")):
            with pytest.raises(ModelError, match=reason):
                run_training.start_from(folder, cohort, TrainingConfig(), device=CPU, world=World())

    @pytest.mark.parametrize("changes", [{"training": {"momentum": 0.9}}, {"training": None}, {"network": {"x": 1}}])
    def test_a_state_of_another_version(self, cohort, tmp_path, changes):
        run_training.train(trainer_of(cohort), cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
        tensors, payload = checkpoint.load_state(tmp_path)
        checkpoint.save_state(tmp_path, tensors, {**payload, **changes})
        with pytest.raises(ModelError, match="of another version"):
            run_training.resume(tmp_path, cohort, device=CPU, world=World())

    def test_an_unknown_noise(self):
        with pytest.raises(ConfigError, match="a classifier is trained with gaussian noise, not simplex"):
            TrainingConfig(task=Task.CLASSIFIER, noise=Noise.SIMPLEX)
        with pytest.raises(ConfigError, match="unknown noise 'white'; choose one of gaussian, simplex"):
            TrainingConfig(noise="white")  # type: ignore[arg-type]

    def test_a_model_of_another_noise(self, cohort, tmp_path):
        trainer = trainer_of(cohort, UNLABELLED, task="healthy", noise="simplex")
        run_training.train(trainer, cohort, tmp_path, TrainingLimits(steps=1, **QUIET))
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
    script.write_text(f"import sys; sys.modules.update(dict.fromkeys({absent}))\n{TRAIN}")
    command = [sys.executable, str(script), str(cohort.path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert isinstance(open_cohort(Path(cohort.path)), Cohort)
