"""A fit from scans and labels to a model and a page, on a CPU, and what interrupts it."""

import json
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from anofpdm.choices import Layout, Preset, Raw, Split
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.fit import run_fit
from anofpdm.fit.data_plan import draw_split, plan_data
from anofpdm.fit.estimate import Done, Speed, Work, estimate_time, measure_speed
from anofpdm.fit.fit_config import Budget, Data, FitConfig, detect_layout
from anofpdm.fit.run_fit import Fit
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method import mask
from anofpdm.network import config
from anofpdm.network.checkpoint import load_model
from anofpdm.network.training.log import minutes_trained
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.scoring.burden import detected_by_burden
from anofpdm.student import distillation
from tests import toys
from tests.fit.fit_toys import NARROW, PATIENTS, QUICK, SHAPE, fit, lesion, write_cohort

STEPS = ("--steps", 4)


@pytest.fixture(scope="module", autouse=True)
def small_networks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.PRESETS, Preset.TINY, NARROW)
        patch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(3600.0, 0.01, 0.01))
        patch.setattr(mask, "MEDIAN", 1)  # slices are so small that a median would leave nothing of a lesion
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_cohort(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def fitted(world, tmp_path_factory):
    """The output of a run without interruption, and its model."""
    out = tmp_path_factory.mktemp("fitted") / "model"
    return fit(world[0], "--labels", world[1], "--out", out, *STEPS, *QUICK), out


@pytest.fixture
def run(world, tmp_path):
    """Runs a fit into an own folder, with the usual labels unless others are given."""

    def run(*words, scans=world[0], labels=world[1], steps=STEPS, code=0, out=tmp_path / "model"):
        labelled = ("--labels", labels) if labels else ()
        return fit(scans, *labelled, "--out", out, *steps, *words, *QUICK, code=code)

    return run


def write_labels(folder, *rows):
    (folder / "labels.csv").write_text("\n".join(["subject,slice,label", *rows]))
    return folder / "labels.csv"


def contents(model):
    """Hashes of weights with their settings, and the calibration: everything that a fit computes."""
    return [load_model(model)[2], (model / "calibration.json").read_text(), load_model(model / "student")[2]]


def test_one_command_gives_a_model_that_segments(fitted, world):
    import anofpdm

    output, model = fitted
    lines = output.splitlines()
    assert [line[:3] for line in lines if line[1:3] == "/5"] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    result = anofpdm.load(model, device="cpu").segment({"flair": world[0] / "p1_flair.nii.gz"})
    assert result.mask.shape == SHAPE
    assert json.loads((model / "config.json").read_text())["step"] == STEPS[1]
    assert "estimated time: 4.0 hours" in output
    assert "no GPU is used. 4 training steps take 4 hours" in output


def test_a_finished_fit_does_nothing_again(fitted, run, monkeypatch):
    before = contents(fitted[1])
    for name in ("prepare", "fit_calibration", "distill", "measure_speed"):
        monkeypatch.setattr(run_fit, name, None)
    assert run(out=fitted[1]).count("complete") == 3
    assert contents(fitted[1]) == before


def test_an_interrupted_fit_resumes(fitted, run, tmp_path, monkeypatch):
    """In training, then in calibration, then in distillation."""
    model = tmp_path / "model"
    interruptions = (
        (Trainer, "update", interrupted_after(Trainer.update, 2), 0),
        (run_fit, "fit_calibration", interrupt, 0),
        (distillation, "train_student", interrupt, 1),
    )
    for place, name, replacement, complete in interruptions:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, replacement)
            output = run(code=130)
        assert "resume" in output
        assert output.count(": complete") == complete
        assert Fit(FitConfig(Data(tmp_path, Layout.NIFTI), model, Budget(4)), None, print).is_trained() == (
            place is not Trainer
        )
    assert not (model / "index.html").exists()
    assert run().count(": complete") == 2
    assert contents(model) == contents(fitted[1])  # bit-identical to a run without interruption


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


def interrupted_after(update, steps):
    def updated(trainer, inputs):
        if trainer.step == steps - 1:
            signal.raise_signal(signal.SIGINT)  # takes effect at the end of the step
        return update(trainer, inputs)

    return updated


def test_more_steps_train_further_and_calibrate_again(fitted, run, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(fitted[1], model)
    assert "complete" not in run(steps=("--steps", 6))
    assert json.loads((model / "config.json").read_text())["step"] == 6
    assert all(now != before for now, before in zip(contents(model), contents(fitted[1]), strict=True))


def test_minutes_count_over_all_runs(run, tmp_path, monkeypatch):
    monkeypatch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(1e-4, 1e-7, 1e-4))
    minutes = ("--minutes", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(run_fit, "fit_calibration", interrupt)
        run(steps=minutes, code=130)
    trained = minutes_trained(tmp_path / "model")
    assert 0.01 < trained < 0.1
    assert "2/5 train: complete" in run(steps=minutes)
    assert json.loads((tmp_path / "model" / "fit.json").read_text())["minutes"] > 0
    assert "estimated time: 10 min" in run("--dry-run", steps=("--minutes", 10))  # would train further


def test_preparing_stops_when_the_minutes_are_over(run, tmp_path, monkeypatch):
    """What is prepared is kept for the next run."""
    monkeypatch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(1e-9, 1e-9, 1e-9))
    assert "--minutes 0.0001: used up by preparing" in run(steps=("--minutes", 0.0001), code=1)
    assert (tmp_path / "model" / "cohort" / "journal.jsonl").is_file()


# ---- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["p0,,0", "p1,2,1", "p1,3,maybe"], "labels.csv, line 4: invalid label 'maybe'"),
        (["p0,,0", "p01,3,1"], "labels.csv, line 3: no scan is named p01 (nearest: p"),
        ([f"p{number},,0" for number in range(PATIENTS)], "no unhealthy slice or scan in labels.csv"),
        ([f"p{number},5,1" for number in range(PATIENTS)], "no healthy slice or scan in labels.csv"),
    ],
)
def test_wrong_labels_stop_before_preparing(rows, message, run, tmp_path, monkeypatch):
    monkeypatch.setattr(run_fit, "prepare", None)
    (tmp_path / "own").mkdir()
    assert message in run(labels=write_labels(tmp_path / "own", *rows), code=1)
    assert not (tmp_path / "model").exists()


def test_other_mistakes_stop_before_preparing(run, world, tmp_path, monkeypatch):
    monkeypatch.setattr(run_fit, "prepare", None)
    rows = [f"p{number},{'val' if number in (0, 2) else 'train'}" for number in range(PATIENTS)]
    (tmp_path / "split.csv").write_text("\n".join(["patient,split", *rows]))
    split = ("--split", tmp_path / "split.csv")
    assert "no unhealthy slice or scan of the val split" in run(*split, code=1)
    assert f"{world[0] / 'labels.csv'}: does not exist" in run(labels=None, code=1)
    assert f"{tmp_path / 'own.csv'}: does not exist" in run(labels=tmp_path / "own.csv", code=1)
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


def test_too_little_time_is_refused_with_the_minutes_needed(run, tmp_path, monkeypatch):
    """By hand: 100 steps of an hour take two thirds of what is shared; a tenth is added, as speeds vary."""
    monkeypatch.setattr(run_fit, "prepare", interrupt)
    for dry_run in ((), ("--dry-run",)):
        output = run(*dry_run, steps=("--minutes", 60), code=1)
        assert "0 training steps fit" in output
        assert "give --minutes 9901 or more, which is 100 steps" in output
    assert not (tmp_path / "model").exists()
    run(steps=("--minutes", 9901), code=130)
    monkeypatch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(20.0, 11.0, 0.1))
    output = run(steps=("--steps", 1), out=tmp_path / "other", code=1)
    assert "--steps 1: " in output
    assert "of calibration and student would follow; give --minutes" in output


def test_other_settings_are_refused(fitted, run, world, tmp_path):
    out = ("--out", fitted[1])
    assert "--size 16" in fit(world[0], "--labels", world[1], *out, "--preset", "tiny", "--device", "cpu", code=1)
    assert "was started without --keep-isolated" in run("--keep-isolated", out=fitted[1], code=1)
    assert "was started without --fill-labels" in run("--fill-labels", 20, out=fitted[1], code=1)
    labels = tmp_path / "labels.csv"
    labels.write_text(world[1].read_text().replace("p0,,healthy", "p0,,"))
    assert f"{labels}: changed" in run(labels=labels, out=fitted[1], code=1)


# ---- before preparing ------------------------------------------------------------------------------------------------


def test_a_dry_run_counts_estimates_and_writes_nothing(run, tmp_path):
    output = run("--dry-run")
    assert "10 scans of flair can be read, 0 cannot" in output
    assert "train: 8 patients" in output
    assert "val: 2 patients" in output
    unhealthy = sum(int(lesion(number).any(axis=(0, 1)).sum()) for number in range(PATIENTS))
    counts = np.array(re.findall(r"(\d+) healthy, (\d+) unhealthy, (\d+) unlabelled", output), int).sum(axis=0)
    assert counts.tolist() == [PATIENTS * SHAPE[2] - unhealthy, unhealthy, 0]
    assert "estimated time: 4.0 hours" in output
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
    assert "train: 8 patients; slices: 160, whose labels are derived from masks" in output
    assert "estimated time: 4.0 hours" in output


def test_validation_has_both_kinds_of_patients(world, tmp_path):
    plan = plan_data(FitConfig(Data(world[0], Layout.NIFTI, world[1]), tmp_path))
    splits = [draw_split(plan, seed) for seed in range(20)]
    for split in splits:
        kinds = [int(name[1:]) % 2 for name, part in split.items() if part is Split.VAL]
        assert (len(split), kinds.count(0), kinds.count(1)) == (PATIENTS, 1, 1)
    assert len({tuple(sorted(split.items())) for split in splits}) > 5


def test_options_of_prepare_are_passed_on(world, tmp_path):
    data = Data(world[0], Layout.NIFTI, world[1], size=16, raw=Raw.NEVER, keep_isolated=True, fill_labels_mm=20.0)
    plan = plan_data(FitConfig(data, tmp_path))
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


def test_an_estimate_counts_what_is_left(fitted):
    """By hand: ten levels for each slice."""
    cohort = open_cohort(fitted[1] / "cohort")
    n_val, n_unhealthy = len(cohort.rows("val")), int((cohort.labels[cohort.rows("train")] == 1).sum())
    left = estimate_time(Budget(100), Work.of(cohort), Speed(2.0, 0.1, 3.0), Done(steps=40))
    assert (left.steps, left.training) == (60, 120.0)
    assert left.calibration == pytest.approx(n_val * 10 * 0.1)
    assert left.labelling == pytest.approx(n_unhealthy * 10 * 0.1)
    assert left.student == 100 * 3.0


@pytest.mark.parametrize(("trained", "other"), [(0.0, 0.0), (4.0, 1.0)])
def test_minutes_are_shared_by_all_stages(trained, other):
    """By hand: evaluations take 60 s, 75 with a margin; a third of the rest is for the student."""
    left = estimate_time(Budget(minutes=20), Work(20, 40), Speed(2.0, 0.1, 3.0), Done(10, trained, other))
    shared = 60 * (20 - other) - 75
    assert left.calibration == pytest.approx(20)
    assert (left.labelling, left.student) == pytest.approx((40, shared / 3))
    assert left.training == pytest.approx(2 * shared / 3 - 60 * trained)
    assert left.steps == int(left.training / 2)


def test_speed_is_measured(world):
    """Against the time of whole training batches, within the noise of a busy machine."""
    data, device = Data(world[0], Layout.NIFTI, world[1], size=16), torch.device("cpu")
    speed = measure_speed(FitConfig(data, world[0], preset=Preset.TINY), 1, device)
    assert all(np.isfinite(value) and value > 0 for value in (speed.evaluation, speed.student_step))
    batch = TrainingConfig.batch
    trainer = Trainer(config.preset(Preset.TINY, 1), TrainingConfig(), device)
    inputs = trainer.inputs(torch.zeros(batch, 1, 16, 16), torch.zeros(batch, dtype=torch.long))
    trainer.update(inputs)
    start = time.perf_counter()
    for _ in range(3):
        trainer.update(inputs)
    assert speed.training_step == pytest.approx((time.perf_counter() - start) / 3, rel=4)


def test_detection_by_burden(tmp_path):
    """Masks with known areas: what is detected is counted in the third that it belongs to."""
    from anofpdm.cohorts.plan import plan_cohort

    for number in range(6):
        toys.save(tmp_path / "scans" / f"p{number}_flair.nii.gz", toys.head(SHAPE, seed=number))
        toys.save(tmp_path / "scans" / f"p{number}_seg.nii.gz", lesion(number).astype(np.uint8))
    write_labels(tmp_path / "scans", "p0,,0")
    prepare(plan_cohort("nifti", tmp_path / "scans", size=24), tmp_path / "cohort")
    cohort = open_cohort(tmp_path / "cohort")
    rows = np.arange(len(cohort))
    names = zip(cohort.scans.tolist(), cohort.indices.tolist(), strict=True)
    pixels = np.array([lesion(int(name[1:]))[:, :, index].sum() for name, index in names])
    area = int(toys.SPACING[0] * toys.SPACING[1]) * pixels
    groups = detected_by_burden(cohort, rows, area > 480)
    assert sum(group.slices for group in groups) == (area > 0).sum()
    assert sum(group.detected for group in groups) == (area > 480).sum()
    assert groups[0].smallest_mm2 == pytest.approx(area[area > 0].min())
    assert groups[-1].largest_mm2 == pytest.approx(area.max())
    assert groups[-1].detected == groups[-1].slices
    (cohort.path / "truth" / "masks.npy").unlink()
    assert detected_by_burden(cohort, rows, area > 480) == []
