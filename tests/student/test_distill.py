"""Distillation: pseudo-labels, caching, files. No lesion mask is used."""

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anofpdm.calibration.calibration_file import load_calibration, save_calibration
from anofpdm.calibration.fit_calibration import CalibrationConfig, fit_calibration
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.errors import CalibrationError, ModelError, ScanWarning, TrainingError
from anofpdm.labels import HEALTHY
from anofpdm.method.decision import decide
from anofpdm.method.gather import evidence_batches
from anofpdm.network.predictor import load_trained
from anofpdm.report.page_data import build_page_data
from anofpdm.segment.model import load
from anofpdm.student import targets
from anofpdm.student.distillation import DistillConfig, distill
from anofpdm.student.predict import predict_passes
from anofpdm.student.student import load_student
from anofpdm.student.targets import DiffusionTeacher, pseudo_label, soft_threshold
from anofpdm.student.train_student import StudentTrainingConfig, train_student
from anofpdm.student.typical import describe_cohort
from anofpdm.util.distributed import World
from tests import toys
from tests.student.student_toys import CPU

QUICK = DistillConfig(StudentTrainingConfig(steps=4, batch=4), width=8)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = toys.untrained(tmp_path_factory.mktemp("student"))
    model = load_trained(folder / "model", CPU)
    config = CalibrationConfig(levels=4, strengths=(0.0, 2.0), split="train", batch=16)
    calibration, _ = fit_calibration(model, open_cohort(folder / "cohort"), config)
    # An untrained network does not separate healthy from unhealthy slices: a low threshold, for non-empty masks.
    low = tuple(replace(fit, healthy_threshold=0.1 * fit.healthy_threshold) for fit in calibration.fitted)
    save_calibration(replace(calibration, fitted=low), b"", folder / "model")
    return folder


@pytest.fixture
def copied(made, tmp_path):
    for name in ("model", "cohort"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def with_student(made, tmp_path_factory):
    """A model folder with a student. Not to be changed."""
    folder = tmp_path_factory.mktemp("distilled")
    for name in ("model", "cohort"):
        shutil.copytree(made / name, folder / name)
    distilled(folder)
    return folder / "model"


def opened(folder: Path):
    """The network, its calibration, and the cohort with both kinds of slices in the split that decisions are calibrated
    on."""
    network = load_trained(folder / "model", CPU)
    cohort = open_cohort(folder / "cohort")
    cohort.splits[:] = np.where(np.isin(cohort.patients, ["p0", "p1"]), "val", "train")
    return network, load_calibration(network)[0], cohort


def distilled(folder: Path, config: DistillConfig = QUICK, **options):
    network, calibration, cohort = opened(folder)
    return distill(network, calibration, cohort, config, **options)


def labelled(folder: Path):
    """Pseudo-labels of the training slices, and the rows of these."""
    network, calibration, cohort = opened(folder)
    rows = cohort.rows("train")
    teacher = DiffusionTeacher(network, calibration, batch=8)
    return pseudo_label(teacher, cohort, rows, folder / "student", World()), cohort, rows


def two_heads(folder: Path) -> dict[str, Path]:
    heads = {"flair": toys.head(seed=1), "t2": toys.head(seed=2)}
    return {name: toys.save(folder / f"{name}.nii.gz", head) for name, head in heads.items()}


def test_a_student_is_saved_in_the_models_folder_and_used_by_default(made, with_student, tmp_path):
    assert load(made / "model", "cpu").request().engine.name == "diffusion"
    model = load(with_student, "cpu")
    assert model.request(engine="diffusion").engine.name == "diffusion"
    card = (with_student / "student" / "README.md").read_text()
    assert f"the diffusion model in the parent folder (`{model.diffusion.network.sha256}`)" in card
    assert f"{model.student.calibration.n_unhealthy} unhealthy slices" in card
    assert "at most 4 steps, batch size 4" in card
    result = model.segment(two_heads(tmp_path))
    assert (result.display.rules.engine, result.decisions.evidence) == ("student", None)
    assert result.summary.settings["engine"] == "student"
    assert result.summary.settings["student_sha256"] == model.student.sha256


def test_the_diffusion_model_explains_masks_of_a_student(with_student, tmp_path):
    """With the same curves as if it had segmented the scan itself."""
    model, scans = load(with_student, "cpu"), two_heads(tmp_path)
    plain, whole = model.segment(scans), model.segment(scans, engine="diffusion")
    numbers = [int(plain.display.indices[row]) + 1 for row in (2, 5)]  # as the report counts
    with pytest.warns(ScanWarning, match="no slice 999 to explain"):
        explained = model.segment(scans, explain=[999, *numbers, numbers[1]])
    evidence = explained.decisions.evidence
    np.testing.assert_array_equal(explained.mask, plain.mask)
    assert evidence.rows.tolist() == [2, 5]
    np.testing.assert_allclose(evidence.divergence, whole.decisions.evidence.divergence[[2, 5]], rtol=1e-4)
    np.testing.assert_array_equal(evidence.end_step, whole.decisions.evidence.end_step[[2, 5]])
    assert explained.summary.settings["explained"] == [*numbers, 999]
    rows = [number for number, shown in enumerate(build_page_data(explained)["slices"]) if "divergence" in shown]
    assert rows == [2, 5]
    explained.save(tmp_path / "out")


def test_findings_are_explained_at_their_central_slice(with_student, tmp_path):
    model = load(with_student, "cpu")
    calibration = replace(model.student.calibration, smallest=0)
    eager = replace(calibration, detector=replace(calibration.detector, offset=1e9))  # detects everything
    model = replace(model, student=replace(model.student, calibration=eager))
    with pytest.warns(ScanWarning, match="the lesion mask is"):
        result = model.segment(two_heads(tmp_path), explain="findings")
    middles = set(result.display.space.central_rows(result.findings, result.display.indices))
    assert set(result.decisions.evidence.rows) == middles
    assert build_page_data(result)["start"] in middles
    result.save(tmp_path / "out")
    assert "Curves of the diffusion model are shown for" in (tmp_path / "out" / "report.html").read_text()


def test_a_cohort_without_masks_gives_the_same_student(copied, with_student):
    shutil.rmtree(copied / "cohort" / "truth")
    without, whole = distilled(copied), load_student(with_student, None, CPU)
    for parameters in zip(without.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(*parameters)
    assert str(without.calibration) == str(whole.calibration)


def test_slices_labelled_healthy_have_empty_masks_and_are_not_evaluated(copied, monkeypatch):
    seeds_of_batches = []

    def counting(predict, pixels, seeds, request):
        seeds_of_batches.extend(seeds)
        return evidence_batches(predict, pixels, seeds, request)

    monkeypatch.setattr(targets, "evidence_batches", counting)
    masks, cohort, rows = labelled(copied)
    healthy = cohort.labels[rows] == HEALTHY
    assert len(seeds_of_batches) == np.count_nonzero(~healthy)
    assert (masks[~healthy] > 127).any((1, 2)).mean() > 0.5
    assert not masks[healthy].any()


def test_the_probability_is_one_half_at_the_threshold():
    maps = np.array([[[0.0, 0.1, 0.2, 0.4]], [[0.0, 0.0, 0.0, 0.0]]])
    probabilities = soft_threshold(maps, np.array([0.2, 0.0]))
    np.testing.assert_allclose(probabilities[:, 0], [[0, 1 / 9, 1 / 2, 8 / 9], [0, 0, 0, 0]])


def test_an_interrupted_run_resumes_with_cached_pseudo_labels(copied, monkeypatch):
    masked = []

    def interrupted(evidence, calibration, decision, positions):
        if positions.scans[0] == "p7" and not (copied / "resumed").exists():
            while len([*copied.glob("student/*/*/*.npz")]) < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt
        masked.append(positions.scans[0])
        return decide(evidence, calibration, decision, positions)

    monkeypatch.setattr(targets, "decide", interrupted)
    with pytest.raises(KeyboardInterrupt):
        labelled(copied)
    (copied / "resumed").touch()
    whole, _, _ = labelled(copied)
    assert sorted(masked) == ["p3", "p5", "p7"]  # the others are healthy
    shutil.rmtree(copied / "student")
    np.testing.assert_array_equal(whole, labelled(copied)[0])


def test_pseudo_labels_depend_on_calibration_labels_and_split(copied):
    network, calibration, cohort = opened(copied)
    tables = {**cohort.manifest.tables_sha256, "slices.csv": "other"}
    relabelled = replace(cohort, manifest=replace(cohort.manifest, tables_sha256=tables))
    teacher = DiffusionTeacher(network, calibration, batch=8)
    recalibrated = replace(teacher, calibration=replace(calibration, divergence_max=1.0))
    assert teacher.fingerprint(cohort) == replace(teacher, batch=4).fingerprint(cohort)
    teachers, cohorts = (teacher, recalibrated), (cohort, relabelled)
    assert len({either.fingerprint(slices) for either in teachers for slices in cohorts}) == 4


def test_a_teacher_with_another_context_uses_its_own(copied):
    network, calibration, cohort = opened(copied)
    fitted = tuple(replace(fit, context_mm=3.0 if fit.context_mm else 0.0) for fit in calibration.fitted)
    assert distill(network, replace(calibration, fitted=fitted), cohort, QUICK) is not None


def test_a_damaged_student_leaves_the_diffusion_model_usable(with_student, tmp_path):
    shutil.copytree(with_student, tmp_path / "model")
    weights = tmp_path / "model" / "student" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    model = load(tmp_path / "model", "cpu")
    assert model.request(engine="diffusion").engine.name == "diffusion"
    for engine in ("auto", "student"):
        with pytest.raises(ModelError, match="--engine diffusion"):
            model.request(engine=engine)


@pytest.fixture
def trainings(monkeypatch):
    """The arguments of every training, and its student."""
    done: list[tuple] = []

    def train(*given):
        done.append((*given, train_student(*given)))
        return done[-1][-1]

    monkeypatch.setattr("anofpdm.student.distillation.train_student", train)
    return done


def test_a_student_learns_from_the_mean_prediction_of_others(copied, trainings):
    reported = []

    def report(task, part, total, _note=""):
        if task == "Student training":
            reported.append(part / total)

    config = replace(QUICK, students=2, training=replace(QUICK.training, minutes=9))
    distilled(copied, config, progress=report)
    data = [given[1] for given in trainings]
    assert [(given[2].seed, given[2].minutes) for given in trainings] == [(1, 3), (2, 3), (0, 3)]
    students = [given[-1] for given in trainings[:2]]
    logits = [predict_passes(student, data[0].pixels, data[0].neighbours, CPU)[0].mean(axis=1) for student in students]
    expected = np.mean([1 / (1 + np.exp(-part)) for part in logits], axis=0)
    expected[data[0].labels == HEALTHY] = 0
    assert np.abs(data[2].masks - 255 * expected).max() <= 0.5001
    assert reported == sorted(reported)
    assert reported[-1] == 1


def test_modalities_are_those_that_masks_are_based_on_and_optional_ones_that_join_late(copied, trainings, monkeypatch):
    """The edges of pseudo-labels are moved by the former alone."""
    channels = []

    def move(masks, pixels):
        channels.append(pixels(np.arange(1)).shape[1])
        return masks

    monkeypatch.setattr("anofpdm.student.distillation.move_edges", move)
    network, calibration, cohort = opened(copied)
    narrowed = replace(calibration, settings=replace(calibration.settings, channels=(0,)))
    for scored, optional in ((narrowed, ("t2",)), (calibration, ("t2",)), (narrowed, ())):
        distill(network, scored, cohort, replace(QUICK, optional=optional))
    assert channels == [1, 2, 1]
    assert [(given[1].optional, given[1].late) for given in trainings] == [([1], [1]), ([1], []), ([], [])]
    assert [given[0].modalities for given in trainings] == [("flair", "t2"), ("flair", "t2"), ("flair",)]
    assert load(copied / "model", "cpu").request().modalities == ("flair",)


def test_a_cohort_without_training_slices_or_one_kind_of_validation_slices_is_refused(copied):
    network, calibration, cohort = opened(copied)
    cohort.labels[:] = HEALTHY
    with pytest.raises(CalibrationError, match="one kind is missing"):
        distill(network, calibration, cohort, QUICK)
    cohort.splits[:] = "val"
    with pytest.raises(TrainingError, match="no slice in its training split"):
        distill(network, calibration, cohort, QUICK)


def test_a_student_alone_is_a_model(with_student, tmp_path):
    """The same mask without its diffusion model; what needs that is refused."""
    shutil.copytree(with_student / "student", tmp_path / "model" / "student")
    scans, whole, alone = two_heads(tmp_path), load(with_student, "cpu"), load(tmp_path / "model", "cpu")
    assert alone.diffusion is None
    assert (alone.scans, alone.sha256) == (whole.scans, whole.sha256)
    np.testing.assert_array_equal(alone.segment(scans).anomaly_map, whole.segment(scans).anomaly_map)
    for options in ({"engine": "diffusion"}, {"explain": "findings"}):
        with pytest.raises(ModelError, match="has a student only"):
            alone.request(**options)


def test_a_scan_unlike_those_in_training_is_reported(copied, monkeypatch):
    """The toy cohort has too few scans, so that the limit is fitted on repeated ones with a little noise."""
    network, calibration, cohort = opened(copied)
    modalities, random = ("flair", "t2"), np.random.default_rng(0)
    numbers = describe_cohort(cohort, cohort.rows("train"), modalities)
    many = np.concatenate([numbers + random.normal(0, 0.02, numbers.shape) for _ in range(20)])
    monkeypatch.setattr("anofpdm.student.distillation.describe_cohort", lambda *_: many)
    distill(network, calibration, cohort, QUICK)
    model = load(copied / "model", "cpu")
    usual, noise = two_heads(copied), {}
    for name, path in usual.items():
        head = toys.head()
        voxels = np.where(head > 0, random.uniform(1, 100, head.shape), 0)
        noise[name] = toys.save(path.with_name(f"noise_{name}.nii.gz"), voxels)
    assert "unlike" not in str(model.segment(usual).summary.warnings)
    with pytest.warns(ScanWarning, match=r"unlike the scans in training \(distance .*, limit .*\)\. What differs most"):
        strange = model.segment(noise)
    assert "Do not rely on its mask" in str(strange.summary.warnings)


def test_the_command_passes_its_options_on(made, monkeypatch):
    seen = []
    monkeypatch.setattr("anofpdm.student.distillation.distill", lambda *given: seen.append(given[3]))
    words = ("distill", made / "model", made / "cohort", "--width", 8, "--device", "cpu", "--seed", 3)
    done = CliRunner().invoke(app, [*map(str, words), "--thick-slices", "--students", "3", "--optional", "t2"])
    assert done.exit_code == 0, done.output
    (config,) = seen
    assert (config.training.thick_slices, config.training.seed, config.students) == (True, 3, 3)
    assert (config.optional, config.width) == (("t2",), 8)


@pytest.mark.parametrize("neighbours", ["none", "-4,-2", "-4,-2,2,4"])
def test_thick_slices_need_one_neighbour_on_each_side(made, neighbours):
    words = ("distill", made / "model", made / "cohort", "--device", "cpu", "--thick-slices")
    done = CliRunner().invoke(app, [*map(str, words), f"--neighbours={neighbours}"])
    assert done.exit_code == 1
    assert "use --neighbours auto" in done.output
