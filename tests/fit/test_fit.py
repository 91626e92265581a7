"""A fit from scans and labels to a model and a page, on a CPU, and what interrupts it."""

import json
import shutil
import signal
import time

import numpy as np
import pytest
import torch

from anofpdm.cohorts import open_cohort
from anofpdm.evaluation.burden import detected_by_burden
from anofpdm.fit import estimate, stages
from anofpdm.fit.config import Budget, Data, FitConfig, detect_layout
from anofpdm.fit.estimate import Speed, estimate_time
from anofpdm.fit.split import draw_split
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method import mask
from anofpdm.network import config
from anofpdm.network.checkpoint import load_model
from anofpdm.network.training.log import minutes_trained
from anofpdm.network.training.trainer import Trainer
from anofpdm.options import Layout, Preset, Split
from anofpdm.student import distill
from anofpdm.util.progress import silent
from tests import toys
from tests.fit.fit_toys import NARROW, PATIENTS, QUICK, SHAPE, fit, lesion, write_cohort

STEPS = ("--steps", 4)


@pytest.fixture(scope="module", autouse=True)
def small_networks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.PRESETS, Preset.TINY, NARROW)
        patch.setattr("anofpdm.fit.run.measure_speed", lambda *_: Speed(3600.0, 0.01, 0.01))
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
            patch.setattr(distill, "train_student", interrupt)
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


def test_minutes_count_over_all_runs(world, tmp_path):
    words = (world[0], "--labels", world[1], "--out", tmp_path / "model", *QUICK)
    fit(*words, "--minutes", 0.02)
    assert minutes_trained(tmp_path / "model") == pytest.approx(0.02, rel=2)
    assert "2/5 train: complete" in fit(*words, "--minutes", 0.02)


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

    def test_one_kind_of_label_stops_before_training(self, world, tmp_path):
        labels = tmp_path / "labels.csv"
        labels.write_text("\n".join(["subject,slice,label", *(f"p{number},,healthy" for number in range(PATIENTS))]))
        output = fit(world[0], "--labels", labels, "--out", tmp_path / "model", *QUICK, code=1)
        assert "healthy slices only" in output
        assert not (tmp_path / "model" / "weights.safetensors").exists()

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


def test_validation_has_both_kinds_of_patients(world, tmp_path):
    data = Data(world[0], Layout.NIFTI, world[1])
    plan = stages.plan_data(FitConfig(data, tmp_path))
    for seed in range(20):
        split = draw_split(plan, seed)
        kinds = [int(name[1:]) % 2 for name, part in split.items() if part is Split.VAL]
        assert (len(split), kinds.count(0), kinds.count(1)) == (PATIENTS, 1, 1)
    assert len({tuple(sorted(draw_split(plan, seed).items())) for seed in range(20)}) > 5


def test_isolated_labels_are_left_out_unless_kept(world, tmp_path):
    text, middle = world[1].read_text(), SHAPE[2] // 2
    assert all(f"p1,{middle + step},1" in text for step in (-1, 0, 1))  # inside the lesion
    labels = tmp_path / "labels.csv"
    labels.write_text(text.replace(f"p1,{middle},1", f"p1,{middle},0"))
    for keep, expected in ((False, NULL), (True, HEALTHY)):
        config = FitConfig(Data(world[0], Layout.NIFTI, labels, size=16, keep_isolated=keep), tmp_path / str(keep))
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
    half = FitConfig(Data(cohort.path, Layout.NIFTI), fitted[1], Budget(100))
    left = estimate_time(half, cohort, speed, 40, 0.0)
    assert (left.steps, left.training) == (60, 120.0)
    assert left.calibration == pytest.approx(len(val) * 10 * 0.1)
    assert left.distillation == pytest.approx((cohort.labels[train] == 1).sum() * 10 * 0.1 + 100 * 3.0)
    timed = FitConfig(Data(cohort.path, Layout.NIFTI), fitted[1], Budget(minutes=10))
    left = estimate_time(timed, cohort, speed, 40, 4.0)
    assert (left.steps, left.training) == (180, 360.0)
    assert left.distillation == pytest.approx((cohort.labels[train] == 1).sum() * 10 * 0.1 + 300.0)


def test_speed_is_measured(fitted, world):
    """Against the time of a whole training batch, within the noise of a busy machine."""
    out, data = fitted[1], Data(world[0], Layout.NIFTI, world[1], size=16)
    cohort, device = open_cohort(out / "cohort"), torch.device("cpu")
    speed = estimate.measure_speed(FitConfig(data, out, preset=Preset.TINY), cohort, device)
    assert all(np.isfinite(value) and value > 0 for value in (speed.evaluation, speed.student_step))
    step = estimate._training_step(cohort, config.preset(Preset.TINY, 1), 64, device)
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
    area = np.array(
        [
            lesion(int(name[1:]))[:, :, index].sum()
            for name, index in zip(cohort.scans.tolist(), cohort.indices.tolist(), strict=True)
        ]
    )
    groups = detected_by_burden(cohort, rows, area > 30)
    assert sum(group.slices for group in groups) == (area > 0).sum()
    assert sum(group.detected for group in groups) == (area > 30).sum()
    assert groups[0].smallest_mm2 == pytest.approx(area[area > 0].min())
    assert groups[-1].largest_mm2 == pytest.approx(area.max())
    assert groups[-1].detected == groups[-1].slices
    (cohort.path / "truth" / "masks.npy").unlink()
    assert detected_by_burden(cohort, rows, area > 30) == []
