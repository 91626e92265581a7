"""Teaching a student from a model's own masks: resumable, shared, and blind to drawn lesions."""

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import anofpdm.student.distill as distilling
from anofpdm.calibration import fit as calibrating
from anofpdm.cohorts import open_cohort
from anofpdm.errors import ConfigError, ModelError, ScanError, ScanWarning, TrainingError
from anofpdm.labels import HEALTHY
from anofpdm.method.decision import DecisionSettings
from anofpdm.method.many_slices import evidence_of
from anofpdm.method.mask import MaskSettings
from anofpdm.network.predictor import load_trained
from anofpdm.report.page_data import build_page_data
from anofpdm.segment.model import load
from anofpdm.student.distill import Options, chance_of, distill, teacher_masks
from anofpdm.student.model import load_student
from anofpdm.student.network import log_odds
from anofpdm.student.training import Schooling, teach
from anofpdm.util.distributed import World
from tests import toys

CPU = torch.device("cpu")
LOW = DecisionSettings(mask=MaskSettings("healthy", smallest=0))
QUICK = Options(Schooling(steps=4, batch=4), choices=LOW, width=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = toys.untrained(tmp_path_factory.mktemp("student"))
    cohort = open_cohort(folder / "cohort")
    model = load_trained(folder / "model", CPU)
    options = calibrating.Options(levels=4, strengths=(0.0, 2.0), split="train", batch=16)
    calibrating.save(calibrating.fit_calibration(model, cohort, options), folder / "model")
    return folder


@pytest.fixture
def copied(made, tmp_path):
    """Both kinds of slices in the split that decisions are calibrated on."""
    for name in ("model", "cohort"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


def opened(folder: Path):
    model = load(folder / "model", "cpu")
    # Of a network that knows nothing, healthy and unhealthy slices are alike: a low threshold, so that it draws.
    low = tuple(replace(one, healthy_threshold=0.3 * one.healthy_threshold) for one in model.calibration.fitted)
    model = replace(model, calibration=replace(model.calibration, fitted=low))
    cohort = open_cohort(folder / "cohort")
    cohort.splits[:] = "train"
    held = np.isin(cohort.patients, ["p0", "p1"])
    cohort.splits[held] = "val"
    return model, cohort


def taught(folder: Path, options: Options = QUICK):
    model, cohort = opened(folder)
    return distill(model.trained, model.calibration, cohort, options)


def test_it_lands_beside_its_teacher_and_is_used_from_then_on(copied):
    assert load(copied / "model", "cpu").engine() == "diffusion"
    student = taught(copied)
    again = load(copied / "model", "cpu")
    assert again.engine() == "student"
    assert again.engine("diffusion") == "diffusion"
    assert again.student.calibration.said() == student.calibration.said()
    card = (copied / "model" / "student" / "README.md").read_text()
    assert again.trained.sha256 in card
    assert f"{student.calibration.n_unhealthy} unhealthy slices" in card
    assert "4 steps of batch 4" in card
    scans = {"flair": copied / "f.nii.gz", "t2": copied / "t2.nii.gz"}
    for number, path in enumerate(scans.values()):
        toys.save(path, toys.head(seed=number))
    result = again.segment(scans)
    assert result.display.engine == "student"
    assert result.display.curves is None
    assert result.summary["settings"]["engine"] == "student"
    assert result.summary["settings"]["student_sha256"] == again.student.sha256
    result.save(copied / "out")
    assert "student" in (copied / "out" / "report.html").read_text()
    assert again.segment(scans, engine="diffusion").display.curves is not None


def test_the_diffusion_model_explains_slices_that_a_student_drew(copied):
    """With the curves that it would show if it had drawn the scan itself."""
    taught(copied)
    model = load(copied / "model", "cpu")
    scans = {name: toys.save(copied / f"{name}.nii.gz", toys.head(seed=1)) for name in ("flair", "t2")}
    plain, whole = model.segment(scans), model.segment(scans, engine="diffusion")
    numbers = [int(plain.display.indices[row]) for row in (2, 5)]
    found = model.segment(scans, explain=numbers)
    np.testing.assert_array_equal(found.mask, plain.mask)
    assert np.flatnonzero(found.display.curves.explained).tolist() == [2, 5]
    for row in (2, 5):
        np.testing.assert_allclose(
            found.display.curves.divergence[row], whole.display.curves.divergence[row], rtol=1e-4
        )
        assert found.decisions.end_step[row] == whole.decisions.end_step[row]
    assert np.isnan(found.display.curves.divergence[3]).all()
    assert found.summary["settings"]["explained"] == numbers
    data = build_page_data(found)
    assert [row for row, one in enumerate(data.slices) if one.divergence is not None] == [2, 5]
    with pytest.warns(ScanWarning, match="no slice 999 to explain"):
        beyond = model.segment(scans, explain=np.array([999, numbers[1], numbers[1]]))  # type: ignore[arg-type]
    assert np.flatnonzero(beyond.display.curves.explained).tolist() == [5]
    beyond.save(copied / "beyond")
    with pytest.raises(ConfigError, match="slice numbers"):
        model.segment(scans, explain="70,71")  # type: ignore[arg-type]


def test_findings_are_explained_at_their_middle(copied):
    taught(copied)
    model = load(copied / "model", "cpu")
    said = replace(model.student.calibration, smallest=0)
    eager = replace(said, detector=replace(said.detector, offset=1e9))  # draws whatever it can
    model = replace(model, student=replace(model.student, calibration=eager))
    scans = {name: toys.save(copied / f"{name}.nii.gz", toys.head(seed=1)) for name in ("flair", "t2")}
    found = model.segment(scans, explain="findings")
    middles = {one.row for one in build_page_data(found).findings}
    assert middles
    assert set(np.flatnonzero(found.display.curves.explained)) == middles
    assert build_page_data(found).start in middles
    found.save(copied / "out")
    assert "Curves of the diffusion model are shown for" in (copied / "out" / "report.html").read_text()


def test_a_cohort_without_masks_teaches_the_same(copied, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(copied / "model", other / "model")
    shutil.copytree(copied / "cohort", other / "cohort")
    shutil.rmtree(other / "cohort" / "truth")
    one, two = taught(copied), taught(other)
    for a, b in zip(one.network.parameters(), two.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert one.calibration.said() == two.calibration.said()


def test_slices_that_people_called_healthy_stay_empty_and_are_never_asked_about(copied, monkeypatch):
    model, cohort = opened(copied)
    rows = cohort.rows("train")
    asked = []
    plain = evidence_of
    monkeypatch.setattr(
        distilling, "evidence_of", lambda *args, **words: (asked.append(len(args[2])), plain(*args, **words))[1]
    )
    masks = teacher_masks(model.trained, model.calibration, cohort, rows, QUICK, World(), lambda *_: None)
    assert sum(asked) == (cohort.labels[rows] != HEALTHY).sum()
    assert (masks[cohort.labels[rows] != HEALTHY] > 127).any((1, 2)).mean() > 0.5
    assert not masks[cohort.labels[rows] == HEALTHY].any()


def test_a_teacher_is_half_certain_at_its_threshold():
    maps = np.array([[[0.0, 0.1, 0.2, 0.4]], [[0.0, 0.0, 0.0, 0.0]]])
    found = chance_of(maps, np.array([0.2, 0.0]))
    np.testing.assert_allclose(found[0, 0], [0, 1 / 9, 1 / 2, 8 / 9])
    assert not found[1].any()


def test_stopped_halfway_it_goes_on_with_what_is_drawn(copied, monkeypatch):
    model, cohort = opened(copied)
    rows, plain = cohort.rows("train"), distilling.drawn_by_teacher
    seen: list[np.ndarray] = []

    def interrupted(*args):
        if len(seen) == 3:
            raise KeyboardInterrupt
        seen.append(args[3])
        return plain(*args)

    words = (model.trained, model.calibration, cohort, rows, QUICK)
    monkeypatch.setattr(distilling, "drawn_by_teacher", interrupted)
    with pytest.raises(KeyboardInterrupt):
        teacher_masks(*words, World(), lambda *_: None)
    monkeypatch.setattr(distilling, "drawn_by_teacher", lambda *args: (seen.append(args[3]), plain(*args))[1])
    whole = teacher_masks(*words, World(), lambda *_: None)
    assert len(seen) == len(np.unique(cohort.scans[rows]))
    shutil.rmtree(copied / "model" / "student")
    np.testing.assert_array_equal(whole, teacher_masks(*words, World(), lambda *_: None))


def test_another_calibration_choice_label_or_split_is_drawn_anew(copied):
    model, cohort = opened(copied)
    rows, work = cohort.rows("train"), copied / "model" / "student" / distilling.WORK
    relabelled = replace(cohort, manifest={**cohort.manifest, "tables_sha256": {"slices.csv": "other"}})
    calibrated = replace(model.calibration, divergence_max=1.0)
    other = Options(QUICK.schooling, DecisionSettings(detector="cosine"), width=8)
    for number, (calibration, slices, options) in enumerate(
        [
            (model.calibration, cohort, QUICK),
            (calibrated, cohort, QUICK),
            (model.calibration, relabelled, QUICK),
            (model.calibration, cohort, other),
        ],
        start=1,
    ):
        teacher_masks(model.trained, calibration, slices, rows, options, World(), lambda *_: None)
        assert len(list(work.iterdir())) == number


def test_a_teacher_with_another_context_draws_with_its_own(copied):
    model, cohort = opened(copied)
    fitted = tuple(replace(one, context_mm=3.0 if one.context_mm else 0.0) for one in model.calibration.fitted)
    wide = replace(model.calibration, fitted=fitted)
    assert distill(model.trained, wide, cohort, replace(QUICK, choices=None)) is not None


def test_a_student_that_cannot_be_used_does_not_cost_the_diffusion_model(copied):
    taught(copied)
    weights = copied / "model" / "student" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    model = load(copied / "model", "cpu")
    assert model.engine("diffusion") == "diffusion"
    for asked in ("auto", "student"):
        with pytest.raises(ModelError, match="--engine diffusion"):
            model.engine(asked)


def test_it_needs_only_the_modalities_that_it_looks_at(copied):
    model, cohort = opened(copied)
    narrow = replace(model.calibration, settings=replace(model.calibration.settings, channels=(0,)))
    distill(model.trained, narrow, cohort, QUICK)
    loaded = load(copied / "model", "cpu")
    assert loaded.modalities() == ("flair",)
    assert loaded.modalities("diffusion") == ("flair", "t2")
    flair = toys.save(copied / "flair.nii.gz", toys.head())
    assert loaded.segment({"flair": flair}).mask.shape == toys.head().shape
    with pytest.raises(ScanError, match="no t2 given"):
        loaded.segment({"flair": flair}, engine="diffusion")


@pytest.mark.parametrize(("neighbours_mm", "alone"), [((-0.3, 0.3), True), ((-1.0, 1.0), False), ((), False)])
def test_a_scan_with_other_spacing_than_it_learned_with_is_said(copied, neighbours_mm, alone):
    assert taught(copied, replace(QUICK, neighbours_mm=neighbours_mm))
    scans = {name: toys.save(copied / f"{name}.nii.gz", toys.head()) for name in ("flair", "t2")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(copied / "model", "cpu").segment(scans)
    assert any("sees each slice alone" in str(one.message) for one in caught) == alone


def test_no_student_no_engine_of_that_name(copied):
    model, _ = opened(copied)
    with pytest.raises(ConfigError, match="anofpdm distill"):
        model.engine("student")
    with pytest.raises(ConfigError, match="choose one of"):
        model.engine("teacher")
    assert load_student(copied / "model", model.trained.sha256, CPU) is None


def test_without_training_slices_there_is_nothing_to_teach_with(copied):
    model, cohort = opened(copied)
    cohort.splits[:] = "val"
    with pytest.raises(TrainingError, match="no slice in its training split"):
        distill(model.trained, model.calibration, cohort, QUICK)


def test_in_the_second_round_it_learns_what_the_first_student_draws(copied, monkeypatch):
    _, cohort = opened(copied)
    healthy = cohort.labels[cohort.rows("train")] == HEALTHY
    seen, plain = [], teach
    monkeypatch.setattr(distilling, "teach", lambda *args: (seen.append(args), plain(*args))[1])
    student = taught(copied, replace(QUICK, rounds=2))
    (_, first, once, *_), (_, second, twice, *_) = seen
    assert once.seed != twice.seed
    assert first.masks.dtype == np.uint8
    assert not second.masks[healthy].any()
    before = plain(student.config, first, once, CPU)  # the first student again
    x = torch.from_numpy(first.inputs(np.arange(len(first))))
    chance = log_odds(before, x)[0].sigmoid().numpy()
    np.testing.assert_allclose(second.masks[~healthy] / 255, chance[~healthy], atol=3e-3)
