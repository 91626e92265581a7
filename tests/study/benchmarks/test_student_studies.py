"""The studies of student and signal: their parts against known answers, and every command on a toy cohort."""

import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.checkpoint import load_model, save_model
from anofpdm.scoring.truth import Truth
from anofpdm.segment.model import load
from anofpdm.student.decide import SPAN
from anofpdm.student.student import load_student
from anofpdm.student.student_network import cohort_pixels
from tests import toys
from tests.study.comparison_toys import fill

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def find_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    fill(folder)
    words = ["calibrate", str(folder / "guided"), str(folder / "cohort"), "--levels", "2", "--strengths", "0,2"]
    assert CliRunner().invoke(app, [*words, "--device", "cpu"]).exit_code == 0
    return folder


# ---- commands --------------------------------------------------------------------------------------------------------


def run(monkeypatch, capsys, name, *words):
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_ceiling_and_its_figure(made, tmp_path, monkeypatch, capsys):
    words = (made / "cohort", "--steps", 2, "--patients", 1, "--device", "cpu", "--model", made / "guided")
    printed = run(monkeypatch, capsys, "ceiling", *words)
    assert "masks of 1 patients" in printed
    assert "masks of 4 patients" in printed
    (tmp_path / "table.txt").write_text(printed)
    run(monkeypatch, capsys, "labels_worth", f"toys={tmp_path / 'table.txt'}", "--out", tmp_path / "figure.svg")
    figure = (tmp_path / "figure.svg").read_text()
    assert figure.count("<circle") == 4  # two numbers of patients, unhealthy and mixed
    assert figure.count("labels only") == 2


def test_scores_of_a_ceiling_are_read_from_its_table():
    from labels_worth import Score, read_scores

    table = """
| trained on | unhealthy | mixed | unhealthy, 95% | mixed, 95% |
| --- | --- | --- | --- | --- |
| labels (the student) | 65.2 | 79.4 | 60.3-69.8 | 77.1-81.7 |
| masks of 20 patients (cut -1.5, smallest 40, linked) | 65.2 | 80.1 | 56.9-71.7 | 76.3-83.3 |
"""
    assert read_scores(table, "mixed") == [Score(None, 79.4, (77.1, 81.7)), Score(20, 80.1, (76.3, 83.3))]


def with_provenance(source, model, cohort):
    """A copy of the model, whose student records its cohort as `anofpdm distill` does."""
    shutil.copytree(source, model)
    weights, payload, _ = load_model(model / "student")
    recorded = {name: cohort.manifest[name] for name in ("slices_sha256", "tables_sha256")}
    save_model(model / "student", weights, {**payload, "distillation": {"cohort": recorded}})
    return model


def test_refit_check_keeps_the_weights(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("anofpdm.student.typical.MIN_SCANS", 2)
    monkeypatch.setattr("anofpdm.student.typical.FOLDS", 2)
    model = with_provenance(made / "guided", tmp_path / "guided", open_cohort(made / "cohort"))
    before = load_student(model, None, torch.device("cpu"))
    printed = run(monkeypatch, capsys, "refit", "typical", model, made / "cohort")
    after = load_student(model, None, torch.device("cpu"))
    assert f"{before.sha256} -> {after.sha256}" in printed
    assert before.typical is None
    assert after.typical.modalities == after.config.modalities
    for old, new in zip(before.network.parameters(), after.network.parameters(), strict=True):
        assert torch.equal(old, new)


def test_refit_detector_keeps_the_weights(made, tmp_path, monkeypatch, capsys):
    """The new detector is the one that `anofpdm distill` would have fitted."""
    cohort, cpu = open_cohort(made / "cohort"), torch.device("cpu")
    model = with_provenance(made / "guided", tmp_path / "guided", cohort)
    before = load_student(model, None, cpu)
    lines = run(monkeypatch, capsys, "refit", "detector", model, made / "cohort")
    after = load_student(model, None, cpu)
    assert f"{before.sha256} -> {after.sha256}" in lines
    assert after.calibration.faint_span == SPAN
    rows, positions = cohort.rows("val"), slice_positions(cohort, cohort.rows("val"))
    pixels = cohort_pixels(cohort, rows, after.config.modalities)
    accurate = (after.decide(pixels, positions).detected == (cohort.labels[rows] == UNHEALTHY)).mean()
    assert accurate >= max(np.mean(cohort.labels[rows] == one) for one in (HEALTHY, UNHEALTHY))
    for old, new in zip(before.network.parameters(), after.network.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_check_is_not_refitted_on_another_cohort(made, tmp_path):
    cohort = open_cohort(made / "cohort")
    model = with_provenance(made / "guided", tmp_path / "guided", cohort)
    cohort.manifest["slices_sha256"] = "another"
    with pytest.raises(SystemExit, match="another cohort"):
        toys.benchmark("refit").refit("typical", model, cohort, torch.device("cpu"))


def calibration_error(probabilities, truth):
    """Bin by bin, by its definition: ten bins, a border belongs to the lower one."""
    error = 0.0
    for number in range(10):
        inside = (probabilities <= (number + 1) / 10) & ((probabilities > number / 10) | (number == 0))
        if inside.any():
            error += inside.mean() * abs(probabilities[inside].mean() - truth[inside].mean())
    return error


def test_confidence(made, monkeypatch, capsys):
    """Calibration errors, and how far the estimates are from the measured DICE, against direct computations."""
    words = (made / "guided", made / "cohort", "--split", "train", "--device", "cpu")
    printed = run(monkeypatch, capsys, "confidence", *words)
    cohort, student = open_cohort(made / "cohort"), load_student(made / "guided", None, torch.device("cpu"))
    rows = cohort.rows("train")
    channels = [cohort.modalities.index(name) for name in student.config.modalities]
    images, truth, scans = cohort.pixels(rows), Truth(cohort).masks(rows), cohort.scans[rows]
    decisions = student.decide(images[:, channels].__getitem__, slice_positions(cohort, rows))
    inside = images.mean(axis=1) > -0.95
    errors = {
        "pixel": calibration_error(decisions.maps[inside].astype(float), truth[inside]),
        "slice": calibration_error(1 / (1 + np.exp(-decisions.score)), cohort.labels[rows] == UNHEALTHY),
    }
    for name, error in errors.items():
        (stated,) = re.findall(rf"calibration error per {name}: ([\d.]+)", printed)
        assert float(stated) == pytest.approx(error, abs=2e-4)
    gaps = []
    for scan in np.unique(scans[truth.any(axis=(1, 2))]):  # only scans with a lesion
        here = scans == scan
        masks, areas = decisions.masks[here], decisions.masks[here].sum(axis=(1, 2))
        estimate = (np.where(areas > 0, decisions.estimated_dice[here], 0) * areas).sum() / areas.sum()
        gaps.append(estimate - 2 * (masks & truth[here]).sum() / (areas.sum() + truth[here].sum()))
    assert f"{len(gaps)} scans, mean volume DICE" in printed
    row = next(line for line in printed.splitlines() if line.startswith("| product of the first two"))
    stated = [float(cell) for cell in row.split("|")[4:6]]
    assert stated == pytest.approx([np.mean(gaps), np.mean(np.abs(gaps))], abs=2e-3)


def test_train_models(made, tmp_path, monkeypatch):
    """Stages whose results exist are not repeated; the result is a model."""
    module, started = toys.benchmark("train_models"), []

    def run(words):
        started.append(words[0])
        shutil.copytree(made / "guided", words[words.index("--out") + 1])  # trained, calibrated, with a student

    monkeypatch.setattr(module, "run", run)
    words = ("train_models", "stroke", made / "cohort", "--out", tmp_path / "out", "--steps", 7)
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    module.main()
    module.main()
    assert started == ["train"]
    record = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert record["recipe"]["steps"] == 7
    assert "--steps 7" in record["commands"][0]
    assert load(tmp_path / "out", "cpu").student is not None


@pytest.mark.parametrize("name", ["glioma", "stroke", "lgg"])
def test_commands_of_shipped_models_are_parsed(name, tmp_path):
    """They fail at the cohort, which does not exist, and not at an option."""
    recipe = toys.benchmark("train_models").RECIPES[name]
    for words in recipe.commands(tmp_path / "cohort", tmp_path / "model", "cpu").values():
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1, result.output


@pytest.mark.parametrize(
    ("words", "healthy", "unlabelled"), [(("--share", 0.25), None, 0.75), (("--per-scan", 2), None, None),
                                         (("--small", 1e9), 1.0, 0.0)]
)  # fmt: skip
def test_labels(made, tmp_path, monkeypatch, capsys, words, healthy, unlabelled):
    run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "out", *words)
    before, after = open_cohort(made / "cohort"), open_cohort(tmp_path / "out")
    train, test = before.rows("train"), before.rows("test")
    np.testing.assert_array_equal(after.labels[test], before.labels[test])
    np.testing.assert_array_equal(after.slices, before.slices)
    np.testing.assert_array_equal(Truth(after).masks(train), Truth(before).masks(train))
    if healthy is not None:
        assert (after.labels[train] == HEALTHY).mean() == healthy
    if unlabelled is not None:
        assert (after.labels[train] == NULL).mean() == pytest.approx(unlabelled, abs=0.02)
    else:
        labelled = train[after.labels[train] != NULL]
        assert all(np.count_nonzero(before.scans[labelled] == scan) == 2 for scan in np.unique(before.scans[train]))


def test_labels_of_some_validation_patients(made, tmp_path, monkeypatch, capsys):
    run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "out", "--val-patients", 1)
    before, after = open_cohort(made / "cohort"), open_cohort(tmp_path / "out")
    val, others = before.rows("val"), np.concatenate([before.rows("train"), before.rows("test")])
    np.testing.assert_array_equal(after.labels[others], before.labels[others])
    kept = np.unique(before.patients[val[after.labels[val] != NULL]])
    assert len(kept) == 1
    np.testing.assert_array_equal(after.labels[val] == NULL, before.patients[val] != kept[0])


@pytest.mark.parametrize("count", [0, 1])
def test_labels_of_whole_scans(made, tmp_path, monkeypatch, capsys, count):
    run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "out", "--scans", count)
    before, after = open_cohort(made / "cohort"), open_cohort(tmp_path / "out")
    train, test = before.rows("train"), before.rows("test")
    np.testing.assert_array_equal(after.labels[test], before.labels[test])
    kept = train[after.labels[train] != NULL]
    counts = {scan: np.count_nonzero(after.scans[kept] == scan) for scan in np.unique(after.scans[train])}
    unhealthy = [scan for scan, labelled in counts.items() if labelled == count]
    controls = train[~np.isin(after.scans[train], unhealthy)]
    assert len(np.unique(after.patients[controls])) == len(np.unique(after.patients[train])) // 2
    np.testing.assert_array_equal(after.labels[controls] == HEALTHY, before.labels[controls] == HEALTHY)
    for scan in unhealthy:
        rows = train[after.scans[train] == scan]
        assert np.count_nonzero(after.labels[rows] != NULL) == count
        np.testing.assert_array_equal(after.suspected[rows], after.labels[rows] == NULL)


def test_labels_of_every_third_slice(made, tmp_path, monkeypatch, capsys):
    run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "out", "--every", 3)
    printed = run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "filled", "--every", 3, "--fill", 12)
    before, few, filled = (open_cohort(path) for path in (made / "cohort", tmp_path / "out", tmp_path / "filled"))
    train = before.rows("train")
    np.testing.assert_array_equal(np.delete(few.labels, train), np.delete(before.labels, train))
    for scan in np.unique(before.scans[train]):
        rows = np.flatnonzero(before.scans == scan)
        known = np.flatnonzero(few.labels[rows] != NULL)
        assert set(np.diff(known)) == {3}
        assert known[0] < 3
        assert known[-1] >= len(rows) - 3
        np.testing.assert_array_equal(few.labels[rows][known], before.labels[rows][known])
        # Between two known slices with the same label: that label.
        nearest = np.clip(np.searchsorted(known, np.arange(len(rows)), side="right"), 1, len(known) - 1)
        low, high = few.labels[rows][known[nearest - 1]], few.labels[rows][known[nearest]]
        between = (np.arange(len(rows)) >= known[0]) & (np.arange(len(rows)) <= known[-1]) & (low == high)
        expected = np.where(between, low, few.labels[rows])
        np.testing.assert_array_equal(filled.labels[rows], expected)
    wrong = (filled.labels != before.labels) & (filled.labels != NULL)
    assert f"; {wrong[train].sum()} labels wrong" in printed
    assert (filled.labels[train] != NULL).sum() > 1.5 * (few.labels[train] != NULL).sum()


def test_wrong_labels(made, tmp_path, monkeypatch, capsys):
    run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "out", "--wrong", 0.2)
    before, after = open_cohort(made / "cohort"), open_cohort(tmp_path / "out")
    rows = np.concatenate([before.rows("train"), before.rows("val")])
    assert (before.labels[rows] != after.labels[rows]).mean() == pytest.approx(0.2, abs=0.02)
    run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "fewer", "--wrong", 0.2, "--drop-isolated")
    fewer = open_cohort(tmp_path / "fewer").labels
    neighbours = np.stack([np.roll(after.labels, 1), np.roll(after.labels, -1)])
    same_scan = (np.roll(after.scans, 1) == after.scans) & (np.roll(after.scans, -1) == after.scans)
    isolated = same_scan & (neighbours != after.labels).all(0) & (after.splits != "test")
    assert isolated.sum() > 5
    np.testing.assert_array_equal(fewer, np.where(isolated, NULL, after.labels))


def test_label_studies(made, tmp_path, monkeypatch, capsys):
    """Every command is run, in this process; the pseudo-labels of a model trained for two steps would be empty."""

    def run_here(tasks, _out, _jobs):
        for number, task in enumerate(tasks):
            assert set(task.needs) <= {one.name for one in tasks[:number]}
            words = task.command()
            assert (str(made / "cohort") in words) == (words[0] == "evaluate" or task.name.startswith("all-slices"))
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, result.output
        return []

    def squares(_teacher, cohort, rows, _world, _progress):
        masks = np.zeros((len(rows), 16, 16), np.uint8)
        masks[cohort.labels[rows] != HEALTHY, 4:8, 4:8] = 255
        return masks

    monkeypatch.setattr("comparison.run", run_here)
    monkeypatch.setattr("anofpdm.student.distillation.pseudo_label", squares)
    words = ["run", made / "cohort", "--out", tmp_path / "out", "--preset", "tiny", "--steps", 2, "--student-steps", 2]
    words += ["--device", "cpu", "--studies"]
    for study in ("all slices", "whole scans, 1 slice of each"):  # the second run shows both
        printed = run(monkeypatch, capsys, "label_studies", *words, study)
    with pytest.raises(SystemExit, match="no study is named 'halves'; known are all slices;"):
        run(monkeypatch, capsys, "label_studies", *words, "halves")
    assert re.search(r"all slices \| (\d+) of \1 \|", printed)
    shown = run(monkeypatch, capsys, "label_studies", "show", f"toys={tmp_path / 'out'}", "--out", tmp_path / "a.svg")
    assert printed.splitlines()[-1].startswith("| whole scans, 1 slice of each |")
    assert printed.splitlines()[-1] in shown
    assert (tmp_path / "a.svg").read_text().count("<circle") == 2
