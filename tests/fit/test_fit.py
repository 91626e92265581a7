"""A fit from scans and labels to a model and a page, on a CPU, and what interrupts it."""

import json
import re
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from anofpdm.cohorts import open_cohort
from anofpdm.fit import estimate, stages
from anofpdm.fit.estimate import Done, Speed, Work, estimate_time
from anofpdm.fit.fit_config import Budget, Data, FitConfig, detect_layout
from anofpdm.fit.split import draw_split
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method import mask
from anofpdm.network import config
from anofpdm.network.checkpoint import load_model
from anofpdm.network.training.log import minutes_trained
from anofpdm.network.training.trainer import Trainer
from anofpdm.options import Layout, Preset, Split
from anofpdm.scoring.burden import detected_by_burden
from anofpdm.student import distillation
from anofpdm.util.progress import silent
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


def contents(model):
    """Hashes of weights with their settings, and the calibration: everything that a fit computes."""
    return [load_model(model)[2], (model / "calibration.json").read_text(), load_model(model / "student")[2]]


def test_one_command_gives_a_model_that_segments(fitted, world):
    import anofpdm

    output, model = fitted
    assert [line[:3] for line in output.splitlines() if line[1:3] == "/5"] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    result = anofpdm.load(model, device="cpu").segment({"flair": world[0] / "p1_flair.nii.gz"})
    assert result.mask.shape == SHAPE
    assert json.loads((model / "config.json").read_text())["step"] == STEPS[1]


def test_the_time_is_estimated_at_the_start(fitted):
    """4 steps of an hour."""
    lines = fitted[0].splitlines()
    estimate = next(number for number, line in enumerate(lines) if line.startswith("estimated time: 4.0 hours"))
    assert "no GPU" in lines[estimate + 1]
    assert "4 training steps take 4 hours" in lines[estimate + 1]
    assert lines[estimate + 2].startswith("2/5")


def test_a_finished_fit_does_nothing_again(fitted, world, monkeypatch):
    before = contents(fitted[1])
    for name in ("train_model", "calibrate_model", "distill_model"):
        monkeypatch.setattr(stages, name, None)
    output = fit(world[0], "--labels", world[1], "--out", fitted[1], *STEPS, *QUICK)
    assert output.count("complete") == 3
    assert "estimated" not in output
    assert contents(fitted[1]) == before


@pytest.mark.parametrize("where", ["train", "calibrate", "distil"])
def test_an_interrupted_fit_resumes(where, fitted, world, tmp_path, monkeypatch):
    words = (world[0], "--labels", world[1], "--out", tmp_path / "model", *STEPS, *QUICK)
    with monkeypatch.context() as patch:
        if where == "train":
            patch.setattr(Trainer, "update", interrupted_after(Trainer.update, 2))
        elif where == "calibrate":
            patch.setattr(stages, "fit_calibration", interrupt)
        else:
            patch.setattr(distillation, "train_student", interrupt)
        assert "resume" in fit(*words, code=130)
    assert not (tmp_path / "model" / "index.html").exists()
    assert stages.is_trained(FitConfig(Data(world[0], Layout.NIFTI), tmp_path / "model", Budget(4))) == (
        where != "train"
    )
    output = fit(*words)
    assert ("2/5 train: complete" in output) == (where != "train")
    assert ("3/5 calibrate: complete" in output) == (where == "distil")
    assert contents(tmp_path / "model") == contents(fitted[1])  # bit-identical to a run without interruption


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


def interrupted_after(update, steps):
    def updated(trainer, inputs):
        if trainer.step == steps - 1:
            signal.raise_signal(signal.SIGINT)  # takes effect at the end of the step
        return update(trainer, inputs)

    return updated


def test_more_steps_train_further_and_calibrate_again(fitted, world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(fitted[1], model)
    output = fit(world[0], "--labels", world[1], "--out", model, "--steps", 6, *QUICK)
    assert "complete" not in output
    assert json.loads((model / "config.json").read_text())["step"] == 6
    assert all(now != before for now, before in zip(contents(model), contents(fitted[1]), strict=True))


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(1e-4, 1e-7, 1e-4))


@pytest.mark.usefixtures("fast")
def test_minutes_count_over_all_runs(world, tmp_path, monkeypatch):
    words = (world[0], "--labels", world[1], "--out", tmp_path / "model", *QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(stages, "calibrate_model", interrupt)
        fit(*words, "--minutes", 0.1, code=130)
    trained = minutes_trained(tmp_path / "model")
    assert 0.01 < trained < 0.1
    assert "2/5 train: complete" in fit(*words, "--minutes", 0.1)
    assert set(json.loads((tmp_path / "model" / "fit.json").read_text())["minutes"]) == {
        "prepare", "calibrate", "distil",
    }  # fmt: skip
    assert "estimated time: 10 min" in fit(*words, "--minutes", 10, "--dry-run")  # would train further


@pytest.mark.usefixtures("fast")
def test_preparing_stops_when_the_minutes_are_over(world, tmp_path, monkeypatch):
    """What is prepared is kept for the next run."""
    monkeypatch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(1e-9, 1e-9, 1e-9))
    words = (world[0], "--labels", world[1], "--out", tmp_path / "model", *QUICK)
    assert "--minutes 0.0001: used up by preparing" in fit(*words, "--minutes", 0.0001, code=1)
    assert (tmp_path / "model" / "cohort" / "journal.jsonl").is_file()


class TestWrongInput:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("p1,3,maybe", "line 4: invalid label 'maybe'"),
            ("p1,x,1", "line 4: invalid slice 'x'"),
            ("p01,3,1", "line 4: no scan is named p01 (nearest: p"),
        ],
    )
    def test_a_wrong_row_is_named(self, row, message, world, tmp_path):
        labels = tmp_path / "labels.csv"
        labels.write_text("\n".join(["subject,slice,label", "p0,,0", "p1,2,1", row]))
        output = fit(world[0], "--labels", labels, "--out", tmp_path / "model", *QUICK, code=1)
        assert f"{labels}, {message}" in output

    def test_a_slice_that_does_not_exist_is_named(self, world, tmp_path):
        labels = tmp_path / "labels.csv"
        lines = world[1].read_text().splitlines()
        labels.write_text("\n".join([*lines, "p2,99,0"]))
        output = fit(world[0], "--labels", labels, "--out", tmp_path / "model", *STEPS, *QUICK, code=3)
        assert f"failed: p2: {labels}, line {len(lines) + 1}: slice 99 of p2 does not exist" in output
        assert "slice 99" in (tmp_path / "model" / "index.html").read_text()

    @pytest.mark.parametrize(("given", "missing"), [(0, "unhealthy"), (1, "healthy")])
    @pytest.mark.parametrize("index", ["", "5"])
    def test_one_kind_of_label_stops_before_preparing(self, given, missing, index, world, tmp_path, monkeypatch):
        monkeypatch.setattr(stages, "prepare", None)
        labels = tmp_path / "labels.csv"
        rows = [f"p{number},{index},{given}" for number in range(PATIENTS)]
        labels.write_text("\n".join(["subject,slice,label", *rows]))
        output = fit(world[0], "--labels", labels, "--out", tmp_path / "model", *QUICK, code=1)
        assert f"no {missing} slice or scan in labels.csv" in output
        assert not (tmp_path / "model").exists()

    def test_validation_patients_of_one_kind_stop_before_preparing(self, world, tmp_path, monkeypatch):
        monkeypatch.setattr(stages, "prepare", None)
        split = tmp_path / "split.csv"
        rows = [f"p{number},{'val' if number in (0, 2) else 'train'}" for number in range(PATIENTS)]
        split.write_text("\n".join(["patient,split", *rows]))
        words = (world[0], "--labels", world[1], "--split", split, "--out", tmp_path / "model", *QUICK)
        assert "no unhealthy slice or scan of the validation patients" in fit(*words, code=1)
        assert not (tmp_path / "model").exists()

    def test_a_missing_label_file(self, world, tmp_path):
        words = (world[0], "--out", tmp_path / "model", *QUICK)
        assert f"{world[0] / 'labels.csv'}: does not exist" in fit(*words, code=1)
        assert f"{tmp_path / 'own.csv'}: does not exist" in fit(*words, "--labels", tmp_path / "own.csv", code=1)
        assert not (tmp_path / "model").exists()

    @pytest.mark.parametrize("exists", [False, True])
    def test_scans_that_cannot_be_read_leave_nothing_behind(self, exists, world, tmp_path):
        scans, model = tmp_path / "scans", tmp_path / "model"
        scans.mkdir()
        for path in world[0].iterdir():
            (scans / path.name).write_bytes(b"")
        if exists:
            model.mkdir()
            (model / "notes.txt").touch()
        assert "no scan could be prepared" in fit(scans, "--labels", world[1], "--out", model, *STEPS, *QUICK, code=1)
        assert [path.name for path in tmp_path.rglob("model/*")] == (["notes.txt"] if exists else [])
        assert model.exists() == exists

    def test_too_few_minutes_are_refused_with_those_needed(self, world, tmp_path, monkeypatch):
        """By hand: 100 steps of an hour take two thirds of what is shared; a tenth is added, as speeds vary."""
        words = (world[0], "--labels", world[1], "--out", tmp_path / "model", *QUICK)
        output = fit(*words, "--minutes", 60, code=1)
        assert "0 training steps fit" in output
        assert "give --minutes 9901 or more, which is 100 steps" in output
        assert not (tmp_path / "model").exists()
        monkeypatch.setattr(stages, "prepare", interrupt)
        fit(*words, "--minutes", 9901, code=130)

    def test_one_step_and_then_a_long_calibration_is_refused(self, world, tmp_path, monkeypatch):
        monkeypatch.setattr("anofpdm.fit.run_fit.measure_speed", lambda *_: Speed(20.0, 11.0, 0.1))
        words = (world[0], "--labels", world[1], "--out", tmp_path / "model", *QUICK)
        output = fit(*words, "--steps", 1, code=1)
        assert "--steps 1: less than a minute of training, and then " in output
        assert "give --minutes" in output
        assert not (tmp_path / "model").exists()

    def test_other_settings_are_refused(self, fitted, world):
        words = (world[0], "--labels", world[1], "--out", fitted[1], *STEPS)
        assert "--size 16" in fit(*words, "--preset", "tiny", "--device", "cpu", code=1)
        assert "--preset tiny" in fit(*words, "--preset", "small", "--size", 16, "--device", "cpu", code=1)
        assert "give one of them" in fit(*words, "--minutes", 1, *QUICK, code=1)
        assert "was started without --keep-isolated" in fit(*words, *QUICK, "--keep-isolated", code=1)
        assert "was started without --fill-labels" in fit(*words, *QUICK, "--fill-labels", 20, code=1)

    def test_labels_cannot_change_after_training(self, fitted, world, tmp_path):
        labels = tmp_path / "labels.csv"
        labels.write_text(world[1].read_text().replace("p0,,healthy", "p0,,"))
        assert f"{labels}: changed" in fit(world[0], "--labels", labels, "--out", fitted[1], *STEPS, *QUICK, code=1)

    def test_unknown_scored_modality(self, world, tmp_path):
        words = (world[0], "--labels", world[1], "--out", tmp_path / "model", "--score", "t1", *QUICK)
        assert "--score t1" in fit(*words, code=1)

    def test_another_model_is_not_overwritten(self, world, tmp_path):
        (tmp_path / "weights.safetensors").touch()
        assert "not made by" in fit(world[0], "--labels", world[1], "--out", tmp_path, *QUICK, code=1)

    def test_several_processes_are_refused(self, world, tmp_path, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert "torchrun" in fit(world[0], "--labels", world[1], "--out", tmp_path / "model", *QUICK, code=1)


class TestDryRun:
    def test_counts_and_time_and_nothing_written(self, world, tmp_path):
        output = fit(world[0], "--labels", world[1], "--out", tmp_path / "model", "--dry-run", *STEPS, *QUICK)
        assert "10 scans of flair can be read, 0 cannot" in output
        assert "train: 8 patients" in output
        assert "val: 2 patients" in output
        unhealthy = sum(int(lesion(number).any(axis=(0, 1)).sum()) for number in range(PATIENTS))
        counts = np.array(re.findall(r"(\d+) healthy, (\d+) unhealthy, (\d+) unlabelled", output), int).sum(axis=0)
        assert counts.tolist() == [PATIENTS * SHAPE[2] - unhealthy, unhealthy, 0]
        assert "estimated time: 4.0 hours" in output
        assert not list(tmp_path.iterdir())

    def test_broken_scans_and_wrong_slices_are_named(self, world, tmp_path):
        shutil.copytree(world[0], tmp_path / "scans")
        (tmp_path / "scans" / "p2_flair.nii.gz").write_bytes(b"")
        labels = tmp_path / "labels.csv"
        labels.write_text(world[1].read_text() + "\np4,99,1")
        words = (tmp_path / "scans", "--labels", labels, "--out", tmp_path / "model", "--dry-run", *STEPS, *QUICK)
        output = fit(*words, code=3)
        assert "8 scans of flair can be read, 2 cannot" in output
        assert "p2_flair.nii.gz: the file is empty" in output
        assert "slice 99 of p4 does not exist" in output

    def test_labels_from_masks(self, tmp_path):
        toys.brats_cohort(tmp_path / "scans", patients=10)
        words = (tmp_path / "scans", "--layout", "brats21", "--out", tmp_path / "model", "--dry-run", *STEPS, *QUICK)
        output = fit(*words)
        assert "train: 8 patients; slices: 160, whose labels are derived from masks" in output
        assert "estimated time: 4.0 hours" in output

    def test_too_few_minutes(self, world, tmp_path):
        words = (world[0], "--labels", world[1], "--out", tmp_path / "model", "--dry-run", *QUICK)
        assert "give --minutes" in fit(*words, "--minutes", 1, code=1)


def test_validation_has_both_kinds_of_patients(world, tmp_path):
    data = Data(world[0], Layout.NIFTI, world[1])
    plan = stages.plan_data(FitConfig(data, tmp_path))
    for seed in range(20):
        split = draw_split(plan, seed)
        kinds = [int(name[1:]) % 2 for name, part in split.items() if part is Split.VAL]
        assert (len(split), kinds.count(0), kinds.count(1)) == (PATIENTS, 1, 1)
    assert len({tuple(sorted(draw_split(plan, seed).items())) for seed in range(20)}) > 5


def test_isolated_labels_are_left_out_unless_kept(tmp_path):
    """Of slices as thin as 3 mm; neighbours of thicker ones may differ."""
    scans, labels = write_cohort(tmp_path, (4.0, 4.0, 3.0))
    text, middle = labels.read_text(), SHAPE[2] // 2
    assert all(f"p1,{middle + step},1" in text for step in (-1, 0, 1))  # inside the lesion
    labels.write_text(text.replace(f"p1,{middle},1", f"p1,{middle},0"))
    for keep, expected in ((False, NULL), (True, HEALTHY)):
        config = FitConfig(Data(scans, Layout.NIFTI, labels, size=16, keep_isolated=keep), tmp_path / str(keep))
        cohort = stages.prepare_cohort(config, silent)
        assert cohort.labels[(cohort.scans == "p1") & (cohort.indices == middle)].tolist() == [expected]


def test_labels_of_whole_scans(world, tmp_path):
    """Validation has scans of both kinds, and the labels of slices are estimated."""
    labels = tmp_path / "labels.csv"
    rows = [f"p{number},,{'unhealthy' if number % 2 else 'healthy'}" for number in range(PATIENTS)]
    labels.write_text("\n".join(["subject,slice,label", *rows]))
    fit(world[0], "--labels", labels, "--out", tmp_path / "model", *STEPS, *QUICK)
    cohort = open_cohort(tmp_path / "model" / "cohort")
    val = cohort.rows(Split.VAL)
    assert cohort.suspected[val].any()
    assert set(cohort.labels[val].tolist()) == {HEALTHY, NULL}
    calibration = json.loads((tmp_path / "model" / "calibration.json").read_text())
    assert calibration["n_healthy"] + calibration["n_unhealthy"] == len(val)
    assert (tmp_path / "model" / "student" / "weights.safetensors").is_file()


def test_layout_is_detected(world, tmp_path):
    assert detect_layout(world[0]) is Layout.NIFTI
    toys.save(tmp_path / "sub-1" / "ses-2" / "anat" / "sub-1_ses-2_T1w.nii.gz", toys.head())
    assert detect_layout(tmp_path) is Layout.BIDS


def test_estimate_counts_what_is_left(fitted):
    """By hand: 80 slices at most, ten levels each."""
    cohort = open_cohort(fitted[1] / "cohort")
    speed = Speed(training_step=2.0, evaluation=0.1, student_step=3.0)
    val, train = cohort.rows("val"), cohort.rows("train")
    work = Work.of(cohort)
    assert (work.calibrated, work.pseudo_labelled) == (len(val), (cohort.labels[train] == 1).sum())
    left = estimate_time(Budget(100), work, speed, Done(40))
    assert (left.steps, left.training, left.student) == (60, 120.0, 300.0)
    assert left.calibration == pytest.approx(len(val) * 10 * 0.1)
    assert left.labelling == pytest.approx((cohort.labels[train] == 1).sum() * 10 * 0.1)


@pytest.mark.parametrize(("trained", "other"), [(0.0, 0.0), (4.0, 1.0)])
def test_minutes_are_shared_by_all_stages(trained, other):
    """By hand: evaluations take 60 s, 75 with a margin; a third of the rest is for the student."""
    speed, work = Speed(training_step=2.0, evaluation=0.1, student_step=3.0), Work(20, 40)
    left = estimate_time(Budget(minutes=20), work, speed, Done(10, trained, other))
    shared = 60 * (20 - other) - 75
    assert left.student == pytest.approx(shared / 3)
    assert left.training == pytest.approx(2 * shared / 3 - 60 * trained)
    assert left.steps == int(left.training / 2)
    assert left.total + 60 * (trained + other) <= 60 * 20


def test_speed_is_measured(fitted, world):
    """Against the time of a whole training batch, within the noise of a busy machine."""
    data, device = Data(world[0], Layout.NIFTI, world[1], size=16), torch.device("cpu")
    speed = estimate.measure_speed(FitConfig(data, fitted[1], preset=Preset.TINY), 1, device)
    assert all(np.isfinite(value) and value > 0 for value in (speed.evaluation, speed.student_step))
    step = estimate._training_step(config.preset(Preset.TINY, 1), 16, 64, device)
    step()
    start = time.perf_counter()
    for _ in range(3):
        step()
    assert speed.training_step == pytest.approx((time.perf_counter() - start) / 3, rel=4)


def test_detection_by_burden(tmp_path):
    """Masks with known areas: what is detected is counted in the third that it belongs to."""
    from anofpdm.cohorts.plan import plan_cohort
    from anofpdm.cohorts.prepare import prepare

    for number in range(6):
        toys.save(tmp_path / "scans" / f"p{number}_flair.nii.gz", toys.head(SHAPE, seed=number))
        toys.save(tmp_path / "scans" / f"p{number}_seg.nii.gz", lesion(number).astype(np.uint8))
    (tmp_path / "scans" / "labels.csv").write_text("subject,slice,label\np0,,0\n")
    prepare(plan_cohort("nifti", tmp_path / "scans", size=24), tmp_path / "cohort")
    cohort = open_cohort(tmp_path / "cohort")
    rows = np.arange(len(cohort))
    pixel_mm2 = int(toys.SPACING[0] * toys.SPACING[1])
    area = pixel_mm2 * np.array(
        [
            lesion(int(name[1:]))[:, :, index].sum()
            for name, index in zip(cohort.scans.tolist(), cohort.indices.tolist(), strict=True)
        ]
    )
    groups = detected_by_burden(cohort, rows, area > 480)
    assert sum(group.slices for group in groups) == (area > 0).sum()
    assert sum(group.detected for group in groups) == (area > 480).sum()
    assert groups[0].smallest_mm2 == pytest.approx(area[area > 0].min())
    assert groups[-1].largest_mm2 == pytest.approx(area.max())
    assert groups[-1].detected == groups[-1].slices
    (cohort.path / "truth" / "masks.npy").unlink()
    assert detected_by_burden(cohort, rows, area > 480) == []
