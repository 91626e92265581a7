"""The whole comparison on a small cohort, with networks that know nothing: what matters is that nothing is mixed up."""

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from typer.testing import CliRunner

from anofpdm.calibration.fit import Options as CalibrationOptions
from anofpdm.cli.evaluate import models_of
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import AnoFPDMError, CohortError, ConfigError, EvaluationError
from anofpdm.evaluation.comparison.methods import METHODS, Chosen, Reconstruction
from anofpdm.evaluation.comparison.oracle import THRESHOLDS, settings_beyond, tuned_with_masks
from anofpdm.evaluation.comparison.page import write_up
from anofpdm.evaluation.comparison.protocol import Evaluation, Options, results_of
from anofpdm.evaluation.comparison.scores import Known, all_empty, scored
from anofpdm.evaluation.truth import Truth
from anofpdm.method.detection import CurveDetector
from anofpdm.method.mask import mask
from anofpdm.network import checkpoint
from anofpdm.network.predictor import load_trained
from anofpdm.network.training.trainer import build_network
from anofpdm.network.unet import preset
from anofpdm.student.model import Student, StudentCalibration, save_student
from anofpdm.student.network import StudentConfig, StudentNet
from anofpdm.util.distributed import World
from tests import toys

CPU = torch.device("cpu")
TASKS = {
    "guided": ("guided", "gaussian"), "healthy": ("healthy", "gaussian"), "simplex": ("healthy", "simplex"),
    "unconditional": ("unconditional", "gaussian"), "classifier": ("classifier", "gaussian"),
}  # fmt: skip
QUICK = {"level": 6, "scale": 300.0, "invert": 1, "strength": 1.0, "steps": 3}
# The same methods, less far up: every name, every code path, a hundredth of the time.
SHORT = {
    name: replace(one, grid=({**QUICK}, {**QUICK, "level": 10})) if isinstance(one, Reconstruction) else one
    for name, one in METHODS.items()
}


def made_up(folder, task, noise):
    torch.manual_seed(3)
    labels = {} if task == "guided" else {"n_labels": 1, "null_label": 0}
    network = build_network(task, preset("tiny", 2, channels=8, multipliers=(1, 2), attention=(2,), **labels))
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    said = {
        "format": checkpoint.FORMAT, "task": task, "modalities": ["flair", "t2"], "size": 16, "step": 0,
        "network": asdict(network.config), "training": {"noise": noise},
    }  # fmt: skip
    folder.mkdir(parents=True)
    checkpoint.save_model(folder, dict(network.named_parameters()), said)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    split = "\n".join(f"p{number},{('train', 'val', 'test')[number // 4]}" for number in range(12))
    (folder / "split.csv").write_text(f"patient,split\n{split}\n")
    scans = toys.brats_cohort(folder / "scans", 12)
    prepare(plan_cohort("brats21", scans, size=16, split=folder / "split.csv"), folder / "cohort")
    for name, (task, noise) in TASKS.items():
        made_up(folder / name, task, noise)
    torch.manual_seed(4)
    student = StudentNet(StudentConfig(("flair", "t2"), 16, width=8, multipliers=(1, 2)))
    flat = np.ones(1)
    detector = CurveDetector(0 * flat, flat, flat / len(flat), offset=0.0, strength=1.0)
    calibration = StudentCalibration(detector, accuracy=0.5, auc=0.5, n_healthy=1, n_unhealthy=1, smallest=0)
    sha256 = checkpoint.load_model(folder / "guided")[2]
    save_student(folder / "guided", Student(student.eval(), calibration, sha256, CPU), {})
    return folder


class Blurred:
    """An untrained network's answers are as rough as noise; smoothed, its maps have regions that a mask can take."""

    device, precision = CPU, "fp32"

    def __init__(self, predict):
        self.predict = predict

    def __call__(self, x, t, labels):
        return torch.nn.functional.avg_pool2d(self.predict(x, t, labels), 5, 1, 2, count_include_pad=False)


def evaluation(made, out, names=("anofpdm-ddim",), batch=32, seeds=(0,), **changes):
    trained = load_trained(made / "guided", CPU)
    trained = replace(trained, predict=Blurred(trained.predict))  # type: ignore[arg-type]
    others = [f"{name}={made / name}" for name in TASKS if name != "guided"]
    calibration = CalibrationOptions(signal="error", score=("flair",), levels=4, strengths=(0.0, 2.0), batch=batch)
    options = Options(calibration=calibration, sample=40, tune=20, seeds=seeds, batch=batch, **changes)
    models, hashes = models_of(trained, others, CPU, "fp32")
    cohort = open_cohort(made / "cohort")
    chosen = Chosen(tuple(names), SHORT)
    return Evaluation(trained, models, cohort, chosen, out, options, World(), lambda *_: None, hashes)


@pytest.fixture(scope="module")
def everything(made, tmp_path_factory):
    run = evaluation(made, tmp_path_factory.mktemp("everything"), METHODS, seeds=(0, 1))
    run.run()
    write_up(run)
    return run


def test_every_method_has_a_row_and_every_file_is_there(everything):
    results = results_of(everything)
    assert set(results) == {*METHODS, "all-empty"}
    assert set(results["cg-cdm"]) == {"unhealthy"}
    table = (everything.out / "table.md").read_text()
    assert all(f"| {name} |" in table for name in results)
    assert "| M | anoddpm-simplex |" in table
    assert "| L | anofpdm-ddim |" in table
    assert (everything.out / "table.tex").read_text().count(r"\\") == len(results) + 2
    assert (everything.out / "examples.png").read_bytes().startswith(b"\x89PNG")
    page = (everything.out / "index.html").read_text()
    assert "http" not in page.replace("https://www.w3.org", "")
    assert not list(everything.out.glob("work/*"))  # the space is given back
    said = json.loads((everything.out / "results.json").read_text())
    assert said["methods"]["anofpdm-ddim"]["mixed"]["seeds"][0]["numbers"]["dice"] == pytest.approx(
        results["anofpdm-ddim"]["mixed"][0].numbers["dice"]
    )


def test_masks_are_neither_empty_nor_everything(everything):
    """Else the tests below would compare nothing with nothing."""
    drawn = {name: by["unhealthy"][0].slices["drawn_pixels"].mean() for name, by in results_of(everything).items()}
    assert sum(0 < area < 128 * 128 for area in drawn.values()) >= 10, drawn
    assert len({round(by["unhealthy"][0].numbers["dice"], 6) for by in results_of(everything).values()}) > 5


def test_every_slice_is_visited_exactly_once(everything):
    rows = list(csv.DictReader((everything.out / "slices.csv").open()))
    visited = [(r["method"], r["setup"], r["seed"], r["scan"], r["slice"]) for r in rows]
    assert len(set(visited)) == len(visited)
    mixed = [r for r in rows if r["method"] == "gradient" and r["setup"] == "mixed" and r["seed"] == "1"]
    assert len(mixed) == 40
    lesions = [r for r in mixed if float(r["lesion_pixels"]) > 0]
    unhealthy = [r for r in rows if r["method"] == "gradient" and r["setup"] == "unhealthy" and r["seed"] == "1"]
    assert {(r["scan"], r["slice"]) for r in lesions} == {(r["scan"], r["slice"]) for r in unhealthy}
    table = np.mean([float(r["dice"]) for r in mixed])
    assert results_of(everything)["gradient"]["mixed"][1].numbers["dice"] == pytest.approx(table, abs=1e-5)


def test_predicting_nothing_scores_the_share_of_healthy_slices(everything):
    known = everything.known
    results = results_of(everything)["all-empty"]
    assert results["mixed"][0].numbers["dice"] == pytest.approx(1 - known.unhealthy.mean())
    assert results["unhealthy"][0].numbers["dice"] == 0


def test_cost_is_counted_in_evaluations_a_slice(everything):
    results = results_of(everything)
    assert results["anofpdm-ddim"]["mixed"][0].numbers["evaluations"] == 2 * 4
    tuned = json.loads((everything.out / "tuned-anoddpm-gaussian.json").read_text())["best_first"]
    for setup, several in results["anoddpm-gaussian"].items():
        assert several[0].numbers["evaluations"] == tuned[setup][0]["setting"]["level"] + 1


def test_maps_of_agreement_are_decided_by_a_calibration_of_their_own(everything):
    results = results_of(everything)
    ours, agreement = (results[f"anofpdm-{name}"]["unhealthy"][0].numbers["auprc"] for name in ("ours", "agreement"))
    assert ours != pytest.approx(agreement, rel=1e-3)
    by_errors, of_agreement = (
        json.loads((everything.out / f"calibration-ddim-by-map{of}.json").read_text()) for of in ("", "-of-agreement")
    )
    assert (by_errors["settings"]["signal"], of_agreement["settings"]["signal"]) == ("error", "agreement")
    assert by_errors["strength"] == of_agreement["strength"]
    first, second = (said["fitted"][0]["healthy_threshold"] for said in (by_errors, of_agreement))
    assert first != pytest.approx(second, rel=1e-3)


def test_where_setups_differ_in_their_setting_healthy_slices_are_mapped_once(made, tmp_path):
    mapped = []

    def bright(models, x0, _seeds, setting):
        mapped.append((setting["level"], len(x0)))
        for t in range(setting["level"]):
            models.guided(x0, t, torch.zeros(len(x0), dtype=torch.long))
        return (x0 > 0).float() * setting["level"]

    run = evaluation(made, tmp_path / "out", ("bright",))
    run = replace(run, chosen=Chosen(("bright",), {"bright": Reconstruction(bright, ({"level": 1},), ())}))
    tuned = {
        setup: [{"setting": {"level": n}, "threshold": 0.5, "dice": 1}] for setup, n in (("unhealthy", 1), ("mixed", 2))
    }
    run.out.mkdir()
    (run.out / "tuned-bright.json").write_text(json.dumps({"made_with": {}, "best_first": tuned}))
    run.run()
    unhealthy = run.known.unhealthy
    assert 0 < unhealthy.sum() < 40
    assert sum(count for level, count in mapped if level == 2) == 40
    assert sum(count for level, count in mapped if level == 1) == unhealthy.sum()
    scores = results_of(run)["bright"]
    of_mixed = scores["mixed"][0].slices["dice"][unhealthy]  # above 0.5 lie the same pixels
    np.testing.assert_array_equal(scores["unhealthy"][0].slices["dice"], of_mixed)
    assert of_mixed.max() > 0
    assert [scores[setup][0].numbers["evaluations"] for setup in ("unhealthy", "mixed")] == [1, 2]


def test_going_on_runs_only_what_is_missing(everything, made):
    stamps = {path: path.stat().st_mtime_ns for path in everything.out.glob("methods/*/*.json")}
    lost = everything.path("anoddpm-gaussian", "mixed", 0).with_suffix(".npz")
    before = results_of(everything)["anoddpm-gaussian"]["mixed"][0].numbers
    lost.write_bytes(b"half")
    again = evaluation(made, everything.out, METHODS, seeds=(0, 1))
    again.run()
    after = results_of(again)["anoddpm-gaussian"]["mixed"][0].numbers
    assert {k: v for k, v in after.items() if k != "seconds"} == pytest.approx(
        {k: v for k, v in before.items() if k != "seconds"}, nan_ok=True
    )
    changed = {path.parent.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {"anoddpm-gaussian"}


def test_a_reading_that_is_added_leaves_others_of_the_same_pass_alone(made, tmp_path):
    evaluation(made, tmp_path / "out", ("anofpdm-ddim",)).run()
    stamp = (tmp_path / "out/methods/anofpdm-ddim/mixed-seed0.json").stat().st_mtime_ns
    both = evaluation(made, tmp_path / "out", ("anofpdm-ddim", "gradient-above"))
    both.run()
    assert {"anofpdm-ddim", "gradient-above"} < set(results_of(both))
    assert (tmp_path / "out/methods/anofpdm-ddim/mixed-seed0.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("first", [True, False])  # when it calibrates, or when it decides
def test_what_fails_in_another_process_is_not_saved_as_done(made, tmp_path, first):
    if not first:
        evaluation(made, tmp_path / "out", ("gradient",)).run()  # which has the same calibration

    class World2(World):
        def all_gather(self, said):
            return [said, "the other one has run out of memory"] if said == "" else super().all_gather(said)

    run = replace(evaluation(made, tmp_path / "out", ("anofpdm-ddim",)), world=World2())
    run.run()
    assert run.failed == {"anofpdm-ddim": "the other one has run out of memory"}
    assert not (tmp_path / "out/methods/anofpdm-ddim").exists()


def test_a_folder_of_another_protocol_is_refused(made, tmp_path):
    evaluation(made, tmp_path / "out").run()
    said = json.loads((tmp_path / "out/settings.json").read_text())
    (tmp_path / "out/settings.json").write_text(json.dumps({**said, "protocol": 1}))
    with pytest.raises(ConfigError, match="of another protocol"):
        evaluation(made, tmp_path / "out").run()


def test_another_models_folder_is_refused(everything, made):
    with pytest.raises(ConfigError, match="of another options"):
        evaluation(made, everything.out, examples=3).run()


NAMES = ("anoddpm-gaussian", "ddim-classifier", "anofpdm-ddim", "anofpdm-ddpm", "anofpdm-ours")


def test_batches_change_no_number(made, tmp_path):
    one, other = evaluation(made, tmp_path / "a", NAMES, batch=40), evaluation(made, tmp_path / "b", NAMES, batch=7)
    one.run()
    other.run()
    for name in NAMES:
        for setup, several in results_of(one)[name].items():
            theirs = results_of(other)[name][setup][0].numbers
            for key, value in several[0].numbers.items():
                if key != "seconds":
                    assert theirs[key] == pytest.approx(value, abs=2e-3, nan_ok=True), (name, setup, key)


def test_processes_change_no_number(made, tmp_path):
    words = ["evaluate", made / "guided", made / "cohort", "--with", f"classifier={made / 'classifier'}"]
    for name in ("anofpdm-ddim", "anofpdm-ddpm", "ddim-classifier-free", "cg-cdm"):
        words += ["--method", name]
    words += ["--sample", 16, "--tune", 12, "--seeds", 1]
    words += ["--levels", 3, "--first-setting", "--device", "cpu", "--batch", 8]
    done = CliRunner().invoke(app, [*map(str, words), "--out", str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29633"]
    command = [*run, "-m", "anofpdm", *map(str, words), "--out", str(tmp_path / "two")]
    both = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert both.returncode == 0, both.stderr
    one, two = (json.loads((tmp_path / name / "results.json").read_text())["methods"] for name in ("one", "two"))
    for name, by_setup in one.items():
        for setup, several in by_setup.items():
            for key, value in several["mean"].items():
                if key != "seconds":
                    assert two[name][setup]["mean"][key] == pytest.approx(value, abs=2e-3), (name, setup, key)


def test_numbers_of_a_set_by_hand():
    truth = np.zeros((3, 16, 16), bool)
    truth[0, :4, :4] = truth[1, 8:12, 8:12] = True
    masks = np.zeros_like(truth)
    masks[0, :4, :2] = True  # half of it: DICE 2 * 8 / 24
    masks[2, 0, 0] = True
    maps = np.random.default_rng(0).random(truth.shape).astype(np.float32)
    inside = np.ones_like(truth)
    known = Known(truth, inside, np.array(["a", "b", "b"]), np.ones(3))
    found = scored(maps, masks, np.asarray(masks.any((1, 2))), maps.max((1, 2)), known).numbers
    assert found["dice"] == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert found["iou"] == pytest.approx((1 / 2) / 3)
    assert found["precision"] == pytest.approx(8 / 9)
    assert found["recall"] == pytest.approx(8 / 32)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert found["volume_dice"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["auprc"] == pytest.approx(average_precision_score(truth.ravel(), maps.ravel()), abs=1e-9)
    assert all_empty(known).numbers["dice"] == pytest.approx(1 / 3)


def of_level(maps, setting):
    return maps[setting["level"]]


def test_tuning_finds_the_best_threshold_and_setting_of_each_setup():
    rng = np.random.default_rng(0)
    truth = np.zeros((6, 32, 32), bool)
    truth[:3, 4:16, 4:16] = True
    good = np.where(truth, 0.5, 0.2) + rng.normal(0, 0.02, truth.shape)
    bad = rng.random(truth.shape)
    maps = {1: bad, 2: good}
    found = tuned_with_masks(partial(of_level, maps), [{"level": 1}, {"level": 2}], truth, beyond=False)
    for setup in ("unhealthy", "mixed"):
        first, second = found[setup]
        assert (first.setting, second.setting) == ({"level": 2}, {"level": 1})
        assert 0.2 < first.threshold < 0.5
        assert first.dice > second.dice
    best = max(
        float(np.mean([2 * (m & t).sum() / max((m.sum() + t.sum()), 1) if (m | t).any() else 1.0
                       for m, t in zip(mask(good, np.full(6, cut)), truth, strict=True)]))
        for cut in THRESHOLDS
    )  # fmt: skip
    assert found["mixed"][0].dice == pytest.approx(best)
    assert THRESHOLDS[0] == 0.01
    assert THRESHOLDS[-1] == 0.69


def test_faint_and_loud_maps_are_tuned_beyond_the_papers_thresholds():
    truth = np.zeros((4, 32, 32), bool)
    truth[:2, 4:16, 4:16] = True
    faint = np.where(truth, 0.006, 0.002)
    for factor in (0.01, 1, 1000, 10_000):
        maps = {1: factor * faint}
        found = tuned_with_masks(partial(of_level, maps), [{"level": 1}], truth)
        assert factor * 0.002 < found["unhealthy"][0].threshold <= factor * 0.006
        assert found["unhealthy"][0].dice > 0.9
    clear = tuned_with_masks(lambda _: np.where(truth, 0.5, 0.2), [{"level": 1}], truth)
    assert clear["unhealthy"][0].threshold in THRESHOLDS


def test_settings_are_followed_beyond_the_end_of_their_grid():
    grid = [{"level": level, "scale": scale} for level in (300, 200, 400) for scale in (10.0, 100.0)]
    assert settings_beyond([{"level": 400, "scale": 10.0}], grid) == [
        {"level": 533, "scale": 10.0},
        {"level": 400, "scale": 1.0},
    ]
    assert settings_beyond([{"level": 300, "scale": 100.0}], grid) == [{"level": 300, "scale": 1000.0}]
    assert (
        settings_beyond([{"level": 300, "invert": 1}], [{"level": 300, "invert": 1}, {"level": 200, "invert": 0}]) == []
    )
    assert settings_beyond([{"level": 900}], [{"level": 600}, {"level": 900}]) == [{"level": 999}]
    truth = np.zeros((4, 32, 32), bool)
    truth[:2, 4:16, 4:16] = True
    asked = []

    def maps_of(setting):
        asked.append(setting["level"])
        shift = abs(setting["level"] - 530) // 40  # the lesion is found where it is at about 530
        return np.where(np.roll(truth, shift, axis=2), 0.5, 0.0)

    found = tuned_with_masks(maps_of, [{"level": 300}, {"level": 400}], truth)
    assert asked == [300, 400, 533, 710]
    asked.clear()
    from_afar = tuned_with_masks(maps_of, [{"level": 200}, {"level": 240}], truth, setups=("unhealthy",))
    assert asked == [200, 240, 288, 346, 416, 500, 601]
    assert from_afar["unhealthy"][0].setting == {"level": 500}
    assert list(tuned_with_masks(maps_of, [{"level": 300}], truth, setups=("unhealthy",))) == ["unhealthy"]

    def only_so_far(setting):
        if setting["level"] > 400:
            raise EvaluationError("maps are not numbers")
        return maps_of(setting)

    as_far = tuned_with_masks(only_so_far, [{"level": 300}, {"level": 400}], truth)
    assert [one.setting["level"] for one in as_far["unhealthy"]] == [400, 300]
    assert found["unhealthy"][0].setting == {"level": 533}
    assert found["unhealthy"][0].dice > 0.95


def test_what_gets_better_for_ever_is_followed_for_eight_steps():
    truth = np.zeros((4, 32, 32), bool)
    truth[:2, 4:16, 4:16] = True
    asked = []

    def maps_of(setting):
        asked.append(setting["scale"])
        return np.where(np.roll(truth, 11 - round(np.log2(setting["scale"])), axis=2), 0.5, 0.0)

    found = tuned_with_masks(maps_of, [{"scale": 1.0}, {"scale": 2.0}], truth, setups=("unhealthy",))
    assert asked == [2.0**step for step in range(10)]
    assert found["unhealthy"][0].setting == {"scale": 512.0}


def test_settings_of_two_values_are_followed_in_both():
    truth = np.zeros((4, 32, 32), bool)
    truth[:2, 4:16, 4:16] = True
    asked = []

    def maps_of(setting):
        asked.append((setting["level"], setting["strength"]))
        away = abs(np.log2(setting["level"] / 400)) + abs(np.log2(setting["strength"] / 8))
        return np.where(np.roll(truth, round(2 * away), axis=2), 0.5, 0.0)

    grid = [{"level": level, "strength": strength} for level in (100, 200) for strength in (2.0, 4.0)]
    found = tuned_with_masks(maps_of, grid, truth)
    assert found["unhealthy"][0].setting == {"level": 400, "strength": 8.0}
    assert len(asked) == len(set(asked))


def test_cuts_above_everything_do_not_hide_faint_lesions():
    """Slices with a faint lesion, and a healthy one with a bright spot: for that one, drawing nothing is right."""
    truth = np.zeros((5, 32, 32), bool)
    truth[:4, 4:16, 4:16] = True
    maps = np.where(truth, 0.006, 0.0)
    maps[4, 4:16, 4:16] = 0.02
    found = tuned_with_masks(lambda _: maps, [{"level": 1}], truth)
    assert found["mixed"][0].threshold <= 0.006
    assert found["mixed"][0].dice > 0.75


def test_calibrations_that_results_were_made_with_stay_as_they_are(made, tmp_path):
    out = tmp_path / "out"
    evaluation(made, out, ("anofpdm-ddim", "anofpdm-ours")).run()
    stored, other = out / "calibration-ddim-by-map.json", out / "calibration-ddim-by-map-of-agreement.json"
    kept = stored.read_bytes() + b"\n"  # another byte, the same calibration
    stored.write_bytes(kept)
    evaluation(made, out, ("anofpdm-ddim", "anofpdm-ours", "anofpdm-agreement")).run()
    assert stored.read_bytes() == kept
    assert other.is_file()

    said = json.loads(kept)
    said["strength"] = next(one["strength"] for one in said["candidates"] if one["strength"] != said["strength"])
    stored.write_text(json.dumps(said))
    other.unlink()
    shutil.rmtree(out / "methods" / "anofpdm-agreement")
    again = evaluation(made, out, ("anofpdm-agreement",))
    again.run()
    assert "use another --out" in again.failed["anofpdm-agreement"]


def test_methods_without_their_models_say_how_to_train_them(made):
    models, _ = models_of(load_trained(made / "guided", CPU), [], CPU, "fp32")
    with pytest.raises(ConfigError, match=r"--with simplex=MODEL \(anofpdm train --task healthy --noise simplex\)"):
        Chosen.by_words(["anoddpm-simplex"], models)
    with pytest.raises(ConfigError, match="unknown method 'unet'"):
        Chosen.by_words(["unet"], models)
    assert "cg-cdm" not in Chosen.by_words(["all"], models).names
    assert "ddim-classifier-free" in Chosen.by_words(["all"], models).names
    with pytest.raises(ConfigError, match="--with x=y"):
        models_of(load_trained(made / "guided", CPU), ["x=y"], CPU, "fp32")


def test_a_cohort_without_masks_cannot_be_measured(made, tmp_path):
    import shutil

    shutil.copytree(made / "cohort", tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "truth")
    run = replace(evaluation(made, tmp_path / "out"), cohort=open_cohort(tmp_path / "bare"))
    with pytest.raises(CohortError, match="no lesion masks"):
        run.run()


def test_truth_is_the_only_way_to_a_mask(made):
    assert Truth(open_cohort(made / "cohort")).known.all()


def test_a_comparison_model_that_has_changed_is_run_anew(made, tmp_path):
    run = evaluation(made, tmp_path, ("anoddpm-gaussian",))
    run.run()
    assert results_of(run)["anoddpm-gaussian"]
    other = replace(run, hashes={**run.hashes, "healthy": "another"})
    assert "anoddpm-gaussian" not in results_of(other)
    assert results_of(replace(run, hashes={**run.hashes, "simplex": "another"}))["anoddpm-gaussian"]


def test_a_method_whose_maps_are_not_numbers_does_not_cost_the_others(made, tmp_path):
    run = evaluation(made, tmp_path, ("anoddpm-gaussian", "anofpdm-ddim"))
    broken = replace(run, models=replace(run.models, healthy=lambda x, _t: x * float("nan")))
    broken.run()
    assert "not numbers" in broken.failed["anoddpm-gaussian"]
    assert results_of(broken)["anofpdm-ddim"]
    write_up(broken)
    assert "could not be done" in (tmp_path / "table.md").read_text()


def test_a_set_without_a_lesion_is_measured_without_the_unhealthy_setup(made, tmp_path):
    run = evaluation(made, tmp_path, ("anofpdm-ddim", "anoddpm-gaussian"))
    cohort = run.cohort
    healthy = np.isin(cohort.patients, ["p8", "p10"]) | (cohort.splits != "test")  # even patients have no lesion
    splits = np.where(healthy, cohort.splits, "train")
    bare = replace(run, cohort=replace(cohort, splits=splits))
    bare.run()
    write_up(bare)
    assert set(results_of(bare)["anofpdm-ddim"]) == {"mixed"}
    assert "nothing to show" in (tmp_path / "index.html").read_text()


def test_a_wrong_word_leaves_the_folder_free(made, tmp_path):
    run = evaluation(made, tmp_path / "out")
    with pytest.raises(EvaluationError, match="no slice of its 'nowhere' split"):
        replace(run, options=replace(run.options, split="nowhere")).run()
    assert not (tmp_path / "out").exists()


def test_models_of_other_modalities_are_refused(made, tmp_path):
    prepare(plan_cohort("brats21", made / "scans", size=16, modalities=("t2",)), tmp_path / "t2")
    run = replace(evaluation(made, tmp_path / "out", ("ddim-classifier-free",)), cohort=open_cohort(tmp_path / "t2"))
    with pytest.raises(AnoFPDMError, match="--modalities flair,t2"):
        run.run()


def test_small_components_are_shown_both_ways(everything):
    numbers = results_of(everything)["anoddpm-gaussian"]["unhealthy"][0].numbers
    assert 0 <= numbers["dice_with_small"] <= 1
    assert "small components kept" in (everything.out / "table.md").read_text()
