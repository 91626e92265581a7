"""A fit from scans and labels to a model and a page, on a CPU, and what interrupts it."""

import json
import math
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch

import anofpdm
from anofpdm.choices import Layout, Preset, Raw, Split
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.fit import run_fit
from anofpdm.fit.data_plan import draw_split, plan_data
from anofpdm.fit.estimate import count_evaluated, estimate_time, measure_step
from anofpdm.fit.fit_config import FitConfig, detect_layout
from anofpdm.fit.run_fit import Fit
from anofpdm.labels import HEALTHY, NULL
from anofpdm.network import config
from anofpdm.network.checkpoint import load_model
from anofpdm.network.training.log import minutes_trained
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.scoring.burden import detected_by_burden
from anofpdm.scoring.truth import Truth
from anofpdm.student import distillation
from tests import toys
from tests.fit.fit_toys import PATIENTS, SHAPE, fit, lesion, write_cohort

STEPS = ("--steps", 4)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def fitted(world, tmp_path_factory):
    """The output of a run without interruption, and its model."""
    out = tmp_path_factory.mktemp("fitted") / "model"
    return fit(world[0], "--labels", world[1], "--out", out, *STEPS), out


@pytest.fixture
def run(world, tmp_path):
    """Runs a fit into an own folder, with the usual labels unless others are given."""

    def run(*words, scans=world[0], labels=world[1], steps=STEPS, code=0, out=tmp_path / "model"):
        labelled = ("--labels", labels) if labels else ()
        return fit(scans, *labelled, "--out", out, *steps, *words, code=code)

    return run


@pytest.fixture
def configured(world, tmp_path):
    """Settings of a fit of the usual scans."""
    return lambda **changes: FitConfig(
        source=world[0], layout=Layout.NIFTI, out=tmp_path / "model", labels=world[1], size=16, **changes
    )


def write_labels(folder, *rows):
    (folder / "labels.csv").write_text("\n".join(["subject,slice,label", *rows]))
    return folder / "labels.csv"


def contents(model):
    """Hashes of weights with their settings, and the calibration: everything that a fit computes."""
    return [load_model(model)[2], (model / "calibration.json").read_text(), load_model(model / "student")[2]]


def lesion_slices(numbers):
    return sum(int(lesion(number).any(axis=(0, 1)).sum()) for number in numbers)


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


def test_one_command_gives_a_model_that_segments(fitted, world):
    output, model = fitted
    assert re.findall(r"^[1-5]/5", output, re.MULTILINE) == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    result = anofpdm.load(model, device="cpu").segment({"flair": world[0] / "p1_flair.nii.gz"})
    assert result.mask.shape == SHAPE
    assert json.loads((model / "config.json").read_text())["step"] == STEPS[1]
    assert "no GPU is used. 4 training steps take 4 hours" in output


def test_a_finished_fit_does_nothing_again(fitted, run, monkeypatch):
    before = contents(fitted[1])
    for name in ("prepare", "fit_calibration", "distill", "measure_step"):
        monkeypatch.setattr(run_fit, name, None)
    assert run(out=fitted[1]).count("complete") == 3
    assert contents(fitted[1]) == before


def test_an_interrupted_fit_resumes(fitted, run, configured, tmp_path, monkeypatch):
    """In training, then in calibration, then in distillation."""

    def update(trainer, inputs, update=Trainer.update):
        if trainer.step == 1:
            signal.raise_signal(signal.SIGINT)  # takes effect at the end of the step
        return update(trainer, inputs)

    interruptions = (
        (Trainer, "update", update, 0),
        (run_fit, "fit_calibration", interrupt, 0),
        (distillation, "train_student", interrupt, 1),
    )
    for place, name, replacement, complete in interruptions:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, replacement)
            output = run(code=130)
        assert "resume" in output
        assert output.count(": complete") == complete
        assert Fit(configured(steps=4), None, print).is_trained() == (place is not Trainer)
    assert not (tmp_path / "model" / "index.html").exists()
    assert run().count(": complete") == 2
    assert contents(tmp_path / "model") == contents(fitted[1])  # bit-identical to a run without interruption


def test_what_belongs_to_another_model_or_calibration_is_made_again(fitted, run, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(fitted[1], model)
    calibration = json.loads((model / "calibration.json").read_text())
    (model / "calibration.json").write_text(json.dumps(calibration | {"n_patients": 7}))
    assert re.findall(r"(\w+): complete", run()) == ["train", "calibrate"]
    assert "complete" not in run(steps=("--steps", 6))
    assert json.loads((model / "config.json").read_text())["step"] == 6
    assert all(now != before for now, before in zip(contents(model), contents(fitted[1]), strict=True))


def test_minutes_count_over_all_runs(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_fit, "measure_step", lambda *_: 1e-4)
    minutes = ("--minutes", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(run_fit, "fit_calibration", interrupt)
        run(steps=minutes, code=130)
    assert 0.01 < minutes_trained(tmp_path / "model") < 0.5  # on a busy machine
    assert "2/5 train: complete" in run(steps=minutes)
    assert json.loads((tmp_path / "model" / "fit.json").read_text())["minutes"] > 0.01
    assert re.search(r"estimated time: \d+ min", run("--dry-run", steps=("--minutes", 10)))  # would train further


def test_preparing_stops_when_the_minutes_are_over(run, tmp_path, monkeypatch):
    """What is prepared is kept for the next run."""
    monkeypatch.setattr(run_fit, "measure_step", lambda *_: 1e-9)
    assert "--minutes 0.0001: used up by preparing" in run(steps=("--minutes", 0.0001), code=1)
    assert (tmp_path / "model" / "cohort" / "journal.jsonl").is_file()


# ---- wrong input -----------------------------------------------------------------------------------------------------


def test_mistakes_stop_before_preparing(run, world, tmp_path, monkeypatch):
    monkeypatch.setattr(run_fit, "prepare", None)
    own = tmp_path / "own"
    own.mkdir()
    for rows, message in (
        (["p0,,0", "p1,2,1", "p1,3,maybe"], "labels.csv, line 4: invalid label 'maybe'"),
        ([f"p{number},,0" for number in range(PATIENTS)], "no unhealthy slice or scan of the val split in labels.csv"),
        ([f"p{number},5,1" for number in range(PATIENTS)], "no healthy slice or scan of the val split in labels.csv"),
    ):
        assert message in run(labels=write_labels(own, *rows), code=1)
    rows = [f"p{number},{'val' if number in (0, 2) else 'train'}" for number in range(PATIENTS)]
    (own / "split.csv").write_text("\n".join(["patient,split", *rows]))
    assert "no unhealthy slice or scan of the val split" in run("--split", own / "split.csv", code=1)
    assert f"{world[0] / 'labels.csv'}: does not exist" in run(labels=None, code=1)
    assert "--score t1" in run("--score", "t1", code=1)
    assert "give one of them" in run("--minutes", 1, code=1)
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        assert "torchrun" in run(code=1)
    assert not (tmp_path / "model").exists()
    (tmp_path / "weights.safetensors").touch()
    assert "not made by" in run(out=tmp_path, code=1)


@pytest.mark.parametrize("exists", [False, True])
def test_scans_that_cannot_be_read_leave_nothing_behind(exists, run, world, tmp_path):
    scans, model = tmp_path / "scans", tmp_path / "model"
    scans.mkdir()
    for path in world[0].iterdir():
        (scans / path.name).write_bytes(b"")
    if exists:
        model.mkdir()
        (model / "notes.txt").touch()
    assert "no scan could be prepared" in run(scans=scans, code=1)
    assert [path.name for path in tmp_path.rglob("model/*")] == (["notes.txt"] if exists else [])
    assert model.exists() == exists


def test_too_little_time_is_refused_with_the_minutes_needed(run, configured, tmp_path, monkeypatch):
    """By hand: ten levels for each slice, each in 5/8 of the time of training on it; 100 steps of an hour, two thirds
    of what is left; a tenth is added."""
    monkeypatch.setattr(run_fit, "prepare", interrupt)
    split = plan_data(configured()).split
    evaluated = 2 * SHAPE[2] + lesion_slices(number for number in range(PATIENTS) if split[f"p{number}"] == "train")
    needed = math.ceil(1.1 * 60 * (evaluated * 10 * 5 / 8 / 64 + 100 * 3 / 2))
    for dry_run in ((), ("--dry-run",)):
        output = run(*dry_run, steps=("--minutes", 60), code=1)
        assert "0 training steps fit" in output
        assert f"give --minutes {needed} or more, which is 100 steps" in output
    assert not (tmp_path / "model").exists()
    run(steps=("--minutes", needed), code=130)


def test_other_settings_are_refused(fitted, run, world, tmp_path):
    assert "was started with --size 16" in run("--size", 32, out=fitted[1], code=1)
    assert "was started without --keep-isolated" in run("--keep-isolated", out=fitted[1], code=1)
    labels = tmp_path / "labels.csv"
    labels.write_text(world[1].read_text().replace("p0,,healthy", "p0,,"))
    assert f"{labels}: changed" in run(labels=labels, out=fitted[1], code=1)


# ---- before preparing ------------------------------------------------------------------------------------------------


def test_a_dry_run_counts_estimates_and_writes_nothing(run, tmp_path):
    output = run("--dry-run")
    assert "10 scans of flair can be read, 0 cannot" in output
    assert "train: 8 patients" in output
    assert "val: 2 patients" in output
    unhealthy = lesion_slices(range(PATIENTS))
    counts = {name: sum(map(int, re.findall(rf"(\d+) {name}", output))) for name in ("healthy", "unhealthy", "unlab")}
    assert counts == {"healthy": PATIENTS * SHAPE[2] - unhealthy, "unhealthy": unhealthy, "unlab": 0}
    assert "(training 4.0 hours, " in output
    assert not list(tmp_path.iterdir())


def test_a_dry_run_names_broken_scans_and_wrong_slices(run, world, tmp_path):
    shutil.copytree(world[0], tmp_path / "scans")
    (tmp_path / "scans" / "p2_flair.nii.gz").write_bytes(b"")
    labels = tmp_path / "labels.csv"
    labels.write_text(world[1].read_text() + "\np4,99,1")
    output = run("--dry-run", scans=tmp_path / "scans", labels=labels, code=3)
    assert "8 scans of flair can be read, 2 cannot" in output
    assert "p2_flair.nii.gz: the file is empty" in output
    assert "slice 99 of p4 does not exist" in output


def test_a_dry_run_with_labels_from_masks(run, tmp_path):
    output = run("--dry-run", "--layout", "brats21", scans=toys.brats_cohort(tmp_path / "scans", 10), labels=None)
    assert "train: 8 patients; slices: 160 whose labels are derived from masks" in output


def test_validation_has_both_kinds_of_patients(configured):
    plan = plan_data(configured())
    splits = [draw_split(plan, seed) for seed in range(20)]
    for split in splits:
        kinds = [int(name[1:]) % 2 for name, part in split.items() if part is Split.VAL]
        assert (len(split), kinds.count(0), kinds.count(1)) == (PATIENTS, 1, 1)
    assert len({tuple(sorted(split.items())) for split in splits}) > 5


def test_options_of_prepare_are_passed_on(configured):
    plan = plan_data(configured(raw=Raw.NEVER, keep_isolated=True, fill_labels_mm=20.0))
    assert (plan.size, plan.raw, plan.keep_isolated, plan.fill_labels_mm) == (16, RawOptions(Raw.NEVER), True, 20.0)


def test_labels_of_whole_scans_and_a_scan_that_fails(run, tmp_path):
    """Validation has scans of both kinds, and the labels of slices are estimated."""
    rows = [f"p{number},,{'unhealthy' if number % 2 else 'healthy'}" for number in range(PATIENTS)]
    labels = write_labels(tmp_path, *rows, "p2,99,0")
    output = run(labels=labels, code=3)
    assert f"failed: p2: {labels}, line {PATIENTS + 2}: slice 99 of p2 does not exist" in output
    model = tmp_path / "model"
    assert "slice 99" in (model / "index.html").read_text()
    cohort = open_cohort(model / "cohort")
    val = cohort.rows(Split.VAL)
    assert cohort.suspected[val].any()
    assert set(cohort.labels[val].tolist()) == {HEALTHY, NULL}
    calibration = json.loads((model / "calibration.json").read_text())
    assert calibration["n_healthy"] + calibration["n_unhealthy"] == len(val)
    assert (model / "student" / "weights.safetensors").is_file()


def test_layout_is_detected(world, tmp_path):
    assert detect_layout(world[0]) is Layout.NIFTI
    toys.save(tmp_path / "sub-1" / "ses-2" / "anat" / "sub-1_ses-2_T1w.nii.gz", toys.head())
    assert detect_layout(tmp_path) is Layout.BIDS


# ---- the estimate ----------------------------------------------------------------------------------------------------


def test_an_estimate_counts_what_is_left(fitted, configured):
    """By hand: ten levels for each slice that is evaluated, each in 5/8 of a step of 64 slices."""
    cohort = open_cohort(fitted[1] / "cohort")
    evaluated = len(cohort.rows("val")) + int((cohort.labels[cohort.rows("train")] == 1).sum())
    left = estimate_time(configured(steps=100), count_evaluated(cohort), 2.0, steps_done=40)
    assert (left.steps, left.training, left.student) == (60, 120.0, 50.0)
    assert left.evaluations == pytest.approx(evaluated * 10 * 2.0 * 5 / 8 / 64)


@pytest.mark.parametrize(("spent", "student_steps_fit"), [(0.0, False), (5.0, False), (0.0, True)])
def test_minutes_are_shared_by_all_stages(configured, spent, student_steps_fit):
    """By hand: evaluations take 60 s; a third of the rest is for the student, unless it needs less, 0.1 s a step."""
    minutes = 600 if student_steps_fit else 15
    left = estimate_time(configured(minutes=minutes), 1536, 0.4, 10, spent)
    shared = 60 * (minutes - spent) - 60
    assert left.evaluations == pytest.approx(60)
    assert left.student == pytest.approx(3000 * 0.1 if student_steps_fit else shared / 3)
    assert left.training == pytest.approx(shared - left.student)
    assert left.steps == int(left.training / 0.4)


def test_the_step_is_measured(configured):
    """Against the time of whole training batches, within the noise of a busy machine."""
    device, batch = torch.device("cpu"), TrainingConfig.batch
    measured = measure_step(configured(preset=Preset.TINY), 1, device)
    trainer = Trainer(config.preset(Preset.TINY, 1), TrainingConfig(), device)
    inputs = trainer.inputs(torch.zeros(batch, 1, 16, 16), torch.zeros(batch, dtype=torch.long))
    trainer.update(inputs)
    start = time.perf_counter()
    for _ in range(3):
        trainer.update(inputs)
    assert measured == pytest.approx((time.perf_counter() - start) / 3, rel=4)


def test_detection_by_burden(tmp_path):
    """What is detected is counted in the third that it belongs to."""
    cohort = prepare(plan_cohort("brats21", toys.brats_cohort(tmp_path / "scans", 6), size=24), tmp_path / "cohort")
    rows = np.arange(len(cohort))
    area = 16 * Truth(cohort).masks(rows).sum(axis=(1, 2))  # pixels of 4 x 4 mm
    detected = area > 480
    groups = detected_by_burden(cohort, rows, detected)
    assert sum(group.slices for group in groups) == (area > 0).sum()
    assert sum(group.detected for group in groups) == detected.sum()
    assert groups[0].smallest_mm2 == pytest.approx(area[area > 0].min())
    assert groups[-1].largest_mm2 == pytest.approx(area.max())
    assert groups[-1].detected == groups[-1].slices
    (cohort.path / "truth" / "masks.npy").unlink()
    assert detected_by_burden(cohort, rows, detected) == []
