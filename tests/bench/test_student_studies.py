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
from scipy import ndimage
from typer.testing import CliRunner

from anofpdm.calibration.fit import slice_positions
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.checkpoint import load_model, save_model
from anofpdm.network.predictor import load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.segment.model import load
from anofpdm.student.faint import SPAN
from anofpdm.student.model import DetectBy, load_student, predict_slices
from anofpdm.student.network import cohort_pixels
from anofpdm.student.typical import describe_scan
from tests import toys
from tests.evaluation.comparison_toys import fill

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


# ---- parts -----------------------------------------------------------------------------------------------------------


def test_synthetic_lesions_change_nothing_outside_and_look_unhealthy_inside():
    """The denoiser knows that unhealthy pixels are 0.5 and all others -0.5."""
    synthetic = toys.benchmark("student_synthetic")
    schedule, means = NoiseSchedule.linear(), {UNHEALTHY: 0.5, NULL: -0.5}

    def predict(x, t, labels):
        clean = torch.stack([torch.full_like(x[0], means[int(label)]) for label in labels])
        return schedule.noise_in(x, clean, t)

    x0 = torch.full((2, 1, 8, 8), -0.5)
    region = torch.zeros(2, 1, 8, 8, dtype=torch.bool)
    region[:, :, 2:5, 3:6] = True
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    found = synthetic.inpaint(predict, x0, region, noise, schedule)
    assert torch.equal(found[~region], x0[~region])
    assert (found[region] > 0.4).all()


# ---- commands --------------------------------------------------------------------------------------------------------


def run(monkeypatch, capsys, name, *words):
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_ideas(made, tmp_path, monkeypatch, capsys):
    ideas = (
        "default,all modalities+filled+hard,cross half+by slice+edges not moved,"
        "two slices each side+nothing pasted+by area"
    )
    words = ("--ideas", ideas, "--steps", 1, "--device", "cpu", "--out", tmp_path / "found.json")
    printed = run(monkeypatch, capsys, "student_ideas", made / "guided", made / "cohort", *words)
    assert printed.count("\n") == 2 + 3 * 4  # three ways to draw masks each
    found = json.loads((tmp_path / "found.json").read_text())
    assert all(0 <= row["mixed"] <= 100 for row in found)


def test_cuts(made, monkeypatch, capsys):
    """The higher the cut, the fewer pixels: recall falls."""
    printed = run(monkeypatch, capsys, "cuts", made / "guided", made / "cohort", "--cuts", "5,0,-5", "--device", "cpu")
    rows = [line.split(" | ") for line in printed.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| 5", "| 0", "| -5"]
    recall = [float(row[5]) for row in rows]
    assert recall == sorted(recall)
    assert recall[0] < recall[-1]


def test_faint(made, monkeypatch, capsys):
    """Three detectors; lower thresholds in faint lesions draw more: recall rises."""
    words = (made / "guided", made / "cohort", "--spans", "0.5,20", "--device", "cpu")
    rows = [line.split(" | ") for line in run(monkeypatch, capsys, "faint", *words).splitlines()[2:]]
    assert [row[0].split(",")[0] for row in rows] == [f"| {kind}" for kind in DetectBy for _ in range(3)]
    recall = np.array([float(row[6]) for row in rows]).reshape(3, 3)
    assert (np.diff(recall, axis=1) >= 0).all()


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


def test_refit_typical_and_unlike_training(made, tmp_path, monkeypatch, capsys):
    """The check is fitted again, weights stay; shares of reported scans are those of the check, scan by scan."""
    monkeypatch.setattr("anofpdm.student.typical.MIN_SCANS", 2)
    monkeypatch.setattr("anofpdm.student.typical.FOLDS", 2)
    cohort = open_cohort(made / "cohort")
    model = with_provenance(made / "guided", tmp_path / "guided", cohort)
    before = load_student(model, None, torch.device("cpu"))
    assert before.sha256 in run(monkeypatch, capsys, "refit_typical", model, made / "cohort")
    after = load_student(model, None, torch.device("cpu"))
    assert (before.typical, after.sha256 == before.sha256) == (None, False)
    for old, new in zip(before.network.parameters(), after.network.parameters(), strict=True):
        assert torch.equal(old, new)
    files = ("--files", f"{model}={made / 'scans'}")
    lines = run(monkeypatch, capsys, "unlike_training", f"{model}={made / 'cohort'}", *files).splitlines()[2:]
    shares = {cells[2].strip(): float(cells[6]) for cells in (line.split("|") for line in lines)}
    modalities, rows = after.config.modalities, cohort.rows("test")
    channels = [cohort.modalities.index(name) for name in modalities]
    found = [
        after.typical.unusual(describe_scan(cohort.pixels(rows[cohort.scans[rows] == scan])[:, channels]), modalities)
        for scan in np.unique(cohort.scans[rows])
    ]
    expected = 100 * sum(one is not None for one in found) / len(found)
    assert shares[f"own test patients, {' '.join(modalities)}"] == pytest.approx(expected, abs=0.05)
    assert f"own scans from files, {' '.join(modalities)}" in shares


def test_refit_detector_keeps_the_weights(made, tmp_path, monkeypatch, capsys):
    """The new detector is the one that `anofpdm distill` would have fitted."""
    cohort, cpu = open_cohort(made / "cohort"), torch.device("cpu")
    model = with_provenance(made / "guided", tmp_path / "guided", cohort)
    before = load_student(model, None, cpu)
    lines = run(monkeypatch, capsys, "refit_detector", model, made / "cohort")
    after = load_student(model, None, cpu)
    assert f"{before.sha256} -> {after.sha256}" in lines
    assert (after.calibration.detect_by, after.calibration.faint_span) == ("both", SPAN)
    rows, positions = cohort.rows("val"), slice_positions(cohort, cohort.rows("val"))
    pixels = cohort_pixels(cohort, rows, after.config.modalities)
    scores = after.calibration.scores(*predict_slices(after.network, pixels, positions, cpu), positions)
    accurate = ((scores >= 0) == (cohort.labels[rows] == UNHEALTHY)).mean()
    assert accurate >= max(np.mean(cohort.labels[rows] == one) for one in (HEALTHY, UNHEALTHY))
    for old, new in zip(before.network.parameters(), after.network.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_check_is_not_refitted_on_another_cohort(made, tmp_path):
    cohort = open_cohort(made / "cohort")
    model = with_provenance(made / "guided", tmp_path / "guided", cohort)
    cohort.manifest["slices_sha256"] = "another"
    with pytest.raises(SystemExit, match="another cohort"):
        toys.benchmark("refit_typical").refit(model / "student", cohort)


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


def test_mirror(made, monkeypatch, capsys):
    printed = run(monkeypatch, capsys, "mirror", made / "guided", made / "cohort", "--device", "cpu")
    assert printed.count("| diffusion |") == printed.count("| student |") == 3


def test_mirror_uses_one_prediction_of_the_student(made):
    """The mean of both predictions would follow the image exactly, and no side could be preferred."""
    mirror, cohort = toys.benchmark("mirror"), open_cohort(made / "cohort")
    rows, device = cohort.rows("val"), torch.device("cpu")
    student = load_student(made / "guided", load_trained(made / "guided", device).sha256, device)
    assert student is not None
    images = cohort.pixels(rows)
    positions, sides = slice_positions(cohort, rows), (images, mirror.mirror(images))
    averaged = [predict_slices(student.network, side.__getitem__, positions, device)[0] for side in sides]
    np.testing.assert_allclose(mirror.mirror(averaged[1]), averaged[0], atol=1e-5)
    drawn = [mirror.draw_without_mirroring(student, side.__getitem__, positions)[0] for side in sides]
    assert (mirror.mirror(drawn[1]) != drawn[0]).any()


def test_signal_choice(made, tmp_path, monkeypatch, capsys):
    out = tmp_path / "one.json"
    words = ("measure", made / "guided", made / "cohort", "--levels", 2, "--device", "cpu", "--out", out)
    run(monkeypatch, capsys, "signal_choice", *words)
    rows = json.loads(out.read_text())["rows"]
    assert [round(row["share"], 2) for row in rows] == [0, 0.2, 0.33, 0.5, 0.67]
    rule = run(monkeypatch, capsys, "signal_choice", "judge", out, out)
    assert "| always 0.33 |" in rule


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
    printed = run(monkeypatch, capsys, "labels", made / "cohort", tmp_path / "filled", "--every", 3, "--fill", 3)
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
    monkeypatch.setattr("anofpdm.student.distill.pseudo_label", squares)
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


def test_detection_limits(tmp_path, monkeypatch, capsys):
    """Two scans: lesions of 40 and 300 pixels; the detector misses the small one and is wrong beside it."""
    columns = "method,setup,seed,patient,scan,slice,lesion_pixels,detected,score"
    pixels = {"a": [0, 0, 40, 300, 0], "b": [0, 0, 0, 0, 0]}
    calls = {"a": [0, 1, 0, 1, 0], "b": [0, 0, 0, 0, 0]}
    rows = [
        f"anofpdm-curve,mixed,0,{scan},{scan},{number},{area},{calls[scan][number]},{calls[scan][number]}"
        for scan in pixels
        for number, area in enumerate(pixels[scan])
    ]
    (tmp_path / "slices.csv").write_text("\n".join([columns, *rows]))
    printed = run(monkeypatch, capsys, "detection_limits", tmp_path)
    row = next(line for line in printed.splitlines() if line.startswith("| anofpdm-curve"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["0%", "-", "100%", "-", "-", "50%", "100%", "80.0%", "0.688", "1.000"]


def test_agreement_of_thin_and_thick_slices(made, tmp_path, monkeypatch, capsys):
    ideas = "shipped,thin,merged+weight 3,three students"
    words = ("--ideas", ideas, "--steps", 1, "--device", "cpu", "--keep", tmp_path, "--out", tmp_path / "found.json")
    run(monkeypatch, capsys, "student_agreement", made / "guided", made / "cohort", *words)
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["idea"] for row in found] == ideas.split(",")
    for kind in ("", "moved: "):
        ordered = [[row[f"{kind}{name}"] for name in ("worst", "tenth", "quarter")] for row in found]
        assert all(0 <= worst <= tenth <= quarter <= 1 for worst, tenth, quarter in ordered)
    assert len(list(tmp_path.glob("thick_*.pt"))) == 3


@pytest.mark.parametrize("move", [(0.0, 1.0, 2.0, -3.0), (10.0, 1.2, 0.5, 1.5)])
def test_slices_are_moved_as_scipy_does_and_back(move):
    agreement = toys.benchmark("student_agreement")
    y, x = np.mgrid[:48, :48]
    blob = np.exp(-((y - 20) ** 2 + (x - 27) ** 2) / 50).astype(np.float32)
    matrix = agreement.move_matrix(move, 48)
    moved = agreement.resample(blob[None, None], matrix, 0.0)
    turned, middle = matrix[:2, :2][::-1, ::-1], np.full(2, 23.5)  # rows before columns
    expected = ndimage.affine_transform(blob, turned, middle + matrix[:2, 2][::-1] * 24 - turned @ middle, order=1)
    np.testing.assert_allclose(moved[0, 0], expected, atol=1e-3)
    back = agreement.resample(moved, np.linalg.inv(matrix), 0.0)[0, 0]
    np.testing.assert_allclose(back, blob, atol=0.03)
    if move[:2] == (0.0, 1.0):
        shift = np.subtract(ndimage.center_of_mass(moved[0, 0]), ndimage.center_of_mass(blob))
        np.testing.assert_allclose(shift, (-3, 2), atol=0.02)


def test_thickened_slices_keep_means_and_what_is_equal_in_all_slices(made):
    agreement, study = toys.benchmark("student_agreement"), toys.benchmark("student_study")
    cohort = open_cohort(made / "cohort")
    part = study.Part(cohort, cohort.rows("val"))
    rng = np.random.default_rng(0)
    same = np.broadcast_to(rng.uniform(-0.9, 0.9, (1, 2, 8, 8)), (len(part.rows), 2, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(agreement.thicken(same, part, 6, 1 / 3), same, atol=1e-5)
    slices = rng.uniform(-0.3, 0.3, same.shape).astype(np.float32)
    thin, rows = agreement.thicken(slices, part, 6, 0.0), agreement.scans(part)[0]
    parts = max(2, round(6 / np.median(np.diff(part.positions.heights_mm[rows]))))
    whole = rows[: len(rows) // parts * parts]
    residual = [one[whole].reshape(-1, parts, *one.shape[1:]).mean(1) for one in (slices, thin)]
    assert np.abs(residual[1] - residual[0]).max() < np.abs(residual[0]).max()
    assert np.abs(thin[whole]).std() < np.abs(slices[whole]).std()


def test_further_modalities(made, tmp_path, monkeypatch, capsys):
    words = ("--further", "t2", "--variants", "plain,late 0.6", "--steps", 2, "--device", "cpu")
    out = tmp_path / "found.json"
    run(monkeypatch, capsys, "student_modalities", made / "guided", made / "cohort", *words, "--out", out)
    found = [(row["variant"], row["given"]) for row in json.loads(out.read_text())]
    assert sorted(found) == [("late 0.6", "flair"), ("late 0.6", "flair+t2"), ("plain", "flair")]
