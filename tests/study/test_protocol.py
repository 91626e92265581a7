"""The whole comparison on a small cohort with untrained networks: bookkeeping, resuming, and equal results."""

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from anofpdm.errors import ConfigError, EvaluationError, MethodError
from anofpdm.network.predictor import load_trained
from anofpdm.study.comparison import method_scoring
from anofpdm.study.comparison.comparison_page import write_report
from anofpdm.study.comparison.methods import METHODS, MethodSelection, ReconstructionMethod
from anofpdm.study.comparison.names import MethodChoice
from anofpdm.study.comparison.protocol import evaluate
from anofpdm.study.comparison.rival_models import load_models
from anofpdm.study.comparison.scores import GroundTruth, Predictions, score_empty, score_predictions
from anofpdm.util.distributed import World
from tests import commands
from tests.study.comparison_toys import CPU, SAMPLE, new_job

pytestmark = pytest.mark.usefixtures("few_bins")


@pytest.fixture(scope="module")
def everything(made, tmp_path_factory):
    run = new_job(made, tmp_path_factory.mktemp("everything"), METHODS, batch=SAMPLE, seeds=(0, 1))
    evaluate(run)
    write_report(run, {})
    return run


@pytest.fixture
def copied(everything, tmp_path):
    """Copies its folder, with the results of the methods named and every calibration."""

    def copy(*methods):
        shutil.copytree(everything.out, tmp_path / "out")
        for path in (tmp_path / "out/methods").iterdir():
            if path.name not in methods:
                shutil.rmtree(path)
        return tmp_path / "out"

    return copy


def test_every_method_has_a_row_and_all_files_are_written(everything):
    results = everything.results()
    assert set(results) == {*METHODS, "all-empty"}
    assert set(results["cg-cdm"]) == {"unhealthy"}
    assert results["anofpdm-ddim"]["mixed"][0].numbers["evaluations"] == 2 * 4  # of a slice: twice a level
    table = (everything.out / "table.md").read_text()
    assert all(f"| {name} |" in table for name in results)
    assert "| M | anoddpm-simplex |" in table
    assert "| L | anofpdm-ddim |" in table
    assert (everything.out / "table.tex").read_text().count(r"\\") == len(results) + 2
    assert (everything.out / "examples.png").read_bytes().startswith(b"\x89PNG")
    page = (everything.out / "index.html").read_text()
    assert "http" not in re.sub('http-equiv|base64,[^"]+', "", page)
    assert not list(everything.out.glob("work/*"))  # the space is given back
    assert len({round(by["unhealthy"][0].numbers["dice"], 6) for by in results.values()}) > 5  # no equal masks
    empty, healthy = results["all-empty"], 1 - everything.evaluation_set.unhealthy.mean()
    assert [empty[setup][0].numbers["dice"] for setup in ("unhealthy", "mixed")] == [0, pytest.approx(healthy)]
    payload = json.loads((everything.out / "results.json").read_text())
    assert payload["methods"]["anofpdm-ddim"]["mixed"]["seeds"][0]["numbers"]["dice"] == pytest.approx(
        results["anofpdm-ddim"]["mixed"][0].numbers["dice"]
    )


def test_every_slice_is_scored_exactly_once(everything):
    rows = list(csv.DictReader((everything.out / "slices.csv").open()))
    visited = [(r["method"], r["setup"], r["seed"], r["scan"], r["slice"]) for r in rows]
    assert len(set(visited)) == len(visited)
    mixed = [r for r in rows if r["method"] == "gradient" and r["setup"] == "mixed" and r["seed"] == "1"]
    assert len(mixed) == SAMPLE
    lesions = [r for r in mixed if float(r["lesion_pixels"]) > 0]
    unhealthy = [r for r in rows if r["method"] == "gradient" and r["setup"] == "unhealthy" and r["seed"] == "1"]
    assert {(r["scan"], r["slice"]) for r in lesions} == {(r["scan"], r["slice"]) for r in unhealthy}
    table = np.mean([float(r["dice"]) for r in mixed])
    assert everything.results()["gradient"]["mixed"][1].numbers["dice"] == pytest.approx(table, abs=1e-5)


def test_worker_processes_and_batches_change_no_score(everything, made, tmp_path, monkeypatch):
    """Nor does the size of batches, of any kind of method: noise belongs to the slice. A worker has the usual bins, so
    intervals differ from those of this module."""
    monkeypatch.setattr(method_scoring, "WORKER_SLICES", 1)
    monkeypatch.setattr(method_scoring, "cpu_cores", lambda: 2)
    names = [name for name, method in METHODS.items() if isinstance(method, ReconstructionMethod)]
    run = new_job(made, tmp_path / "out", ["anofpdm-ddim", "anofpdm-student", *names], batch=7)
    assert not evaluate(run)
    for name, by_setup in run.results().items():
        for setup, (scores,) in by_setup.items():
            expected = everything.results()[name][setup][0]
            numbers = pytest.approx({**expected.numbers, "seconds": 0}, abs=2e-3, nan_ok=True)
            assert {**scores.numbers, "seconds": 0} == numbers
            np.testing.assert_allclose(scores.slices["score"], expected.slices["score"], rtol=1e-3, atol=1e-5)
    assert not list((tmp_path / "out").glob("work/*"))


def test_setups_with_different_settings_reconstruct_only_their_own_slices(made, tmp_path):
    mapped = []

    def bright(models, x0, _seeds, setting):
        mapped.append((setting["level"], len(x0)))
        for t in range(setting["level"]):
            models.guided(x0, t, torch.zeros(len(x0), dtype=torch.long))
        return (x0 > 0).float() * setting["level"]

    run = new_job(made, tmp_path / "out", ("bright",))
    registry = {"bright": ReconstructionMethod(bright, ({"level": 1},), ())}
    run = replace(run, methods=MethodSelection(("bright",), registry))
    tuned = {
        setup: [{"setting": {"level": n}, "threshold": 0.5, "dice": 1}] for setup, n in (("unhealthy", 1), ("mixed", 2))
    }
    run.out.mkdir()
    (run.out / "tuned-bright.json").write_text(json.dumps({"made_with": {}, "best_first": tuned}))
    evaluate(run)
    unhealthy = run.evaluation_set.unhealthy
    assert 0 < unhealthy.sum() < SAMPLE
    assert sum(count for level, count in mapped if level == 2) == SAMPLE
    assert sum(count for level, count in mapped if level == 1) == unhealthy.sum()
    scores = run.results()["bright"]
    of_mixed = scores["mixed"][0].slices["dice"][unhealthy]  # above 0.5 lie the same pixels
    np.testing.assert_array_equal(scores["unhealthy"][0].slices["dice"], of_mixed)
    assert of_mixed.max() > 0
    assert [scores[setup][0].numbers["evaluations"] for setup in ("unhealthy", "mixed")] == [1, 2]


def test_resuming_computes_only_missing_results(everything, made):
    stamps = {path: path.stat().st_mtime_ns for path in everything.out.glob("methods/*/*.json")}
    lost = everything.scores_path("anoddpm-gaussian", "mixed", 0).with_suffix(".npz")
    before = everything.results()["anoddpm-gaussian"]["mixed"][0].numbers
    lost.write_bytes(b"half")
    again = new_job(made, everything.out, METHODS, seeds=(0, 1))
    evaluate(again)
    after = again.results()["anoddpm-gaussian"]["mixed"][0].numbers
    assert after == pytest.approx({**before, "seconds": after["seconds"]}, nan_ok=True)
    changed = {path.parent.name for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {"anoddpm-gaussian"}


def test_failure_in_another_process_is_not_stored_as_done(made, copied):
    class World2(World):
        def all_gather(self, payload):
            other = [MethodError("the other one has run out of memory")] if payload is None else []  # no error here
            return [*super().all_gather(payload), *other]

    run = replace(new_job(made, copied(), ("anofpdm-ddim",)), world=World2())  # with the calibration
    assert evaluate(run) == {"anofpdm-ddim": "the other one has run out of memory"}
    assert not (run.out / "methods/anofpdm-ddim").exists()


def test_folder_with_other_settings_is_refused(made, copied):
    out = copied("anofpdm-ddim")
    payload = json.loads((out / "settings.json").read_text())
    (out / "settings.json").write_text(json.dumps({**payload, "protocol": 1}))
    with pytest.raises(ConfigError, match="with different options, protocol"):
        evaluate(new_job(made, out, examples=3))


def test_scores_of_a_small_set_computed_by_hand():
    truth = np.zeros((3, 16, 16), bool)
    truth[0, :4, :4] = truth[1, 8:12, 8:12] = True
    masks = np.zeros_like(truth)
    masks[0, :4, :2] = True  # half of it: DICE 2 * 8 / 24
    masks[2, 0, 0] = True
    maps = np.random.default_rng(0).random(truth.shape).astype(np.float32)
    inside = np.ones_like(truth)
    known = GroundTruth(np.arange(3), truth, inside, np.array(["a", "b", "b"]), np.ones(3))
    numbers = score_predictions(
        Predictions(maps, masks, np.asarray(masks.any((1, 2))), maps.max((1, 2))), known
    ).numbers
    assert numbers["dice"] == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert numbers["iou"] == pytest.approx((1 / 2) / 3)
    assert numbers["precision"] == pytest.approx(8 / 9)
    assert numbers["recall"] == pytest.approx(8 / 32)
    assert numbers["lesion_f1"] == pytest.approx(2 / (2 + 1 + 1))  # one detected, one missed, one false
    assert numbers["accuracy"] == pytest.approx(1 / 3)
    assert numbers["volume_dice"] == pytest.approx((2 / 3 + 0) / 2)
    assert numbers["auprc"] == pytest.approx(average_precision_score(truth.ravel(), maps.ravel()), abs=1e-9)
    assert score_empty(known).numbers["dice"] == pytest.approx(1 / 3)


def test_stored_calibrations_are_kept(made, copied):
    out = copied("anofpdm-ours")
    stored, other = out / "calibration-ddim-by-map.json", out / "calibration-ddim-by-map-of-agreement.json"
    other.unlink()
    kept = stored.read_bytes() + b"\n"  # another byte, the same calibration
    stored.write_bytes(kept)
    evaluate(new_job(made, out, ("anofpdm-ddim", "anofpdm-ours", "anofpdm-agreement")))
    assert stored.read_bytes() == kept
    assert other.is_file()

    payload = json.loads(kept)
    payload["strength"] = next(
        rated["strength"] for rated in payload["candidates"] if rated["strength"] != payload["strength"]
    )
    stored.write_text(json.dumps(payload))
    other.unlink()
    shutil.rmtree(out / "methods" / "anofpdm-agreement")
    again = new_job(made, out, ("anofpdm-agreement",))
    assert "use another --out" in evaluate(again)["anofpdm-agreement"]


def test_the_command_line_lists_every_method_and_what_it_needs(made, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert [*MethodChoice] == ["all", *METHODS]
    models = load_models(load_trained(made / "guided", CPU), {}, CPU, "fp32")
    with pytest.raises(ConfigError, match=r"--with simplex=MODEL \(anofpdm train --task healthy --noise simplex\)"):
        MethodSelection.from_choices([MethodChoice.ANODDPM_SIMPLEX], models)
    assert "cg-cdm" not in MethodSelection.from_choices([MethodChoice.ALL], models).names
    shown = commands.run("evaluate", "--help").output
    assert all(name in shown for name in MethodChoice)


@pytest.mark.parametrize("wrong", [("--with", "x=y"), ("--strengths", "a")])
def test_wrong_options_are_usage_errors_before_anything_is_loaded(tmp_path, wrong):
    commands.run("evaluate", tmp_path / "no-model", tmp_path / "no-cohort", "--out", tmp_path / "out", *wrong, code=2)
    assert not (tmp_path / "out").exists()


def test_changed_comparison_model_invalidates_its_results_only(everything):
    run = everything
    assert run.results()["anoddpm-gaussian"]
    other = replace(run, models=replace(run.models, hashes={**run.models.hashes, "healthy": "another"}))
    assert "anoddpm-gaussian" not in other.results()
    unrelated = replace(run, models=replace(run.models, hashes={**run.models.hashes, "simplex": "another"}))
    assert unrelated.results()["anoddpm-gaussian"]


def test_method_with_non_finite_maps_fails_alone(made, tmp_path):
    run = new_job(made, tmp_path, ("anoddpm-gaussian", "anofpdm-ddim"))
    broken = replace(run, models=replace(run.models, healthy=lambda x, _t: x * float("nan")))
    failures = evaluate(broken)
    assert "non-finite" in failures["anoddpm-gaussian"]
    assert broken.results()["anofpdm-ddim"]
    write_report(broken, failures)
    assert "anoddpm-gaussian failed" in (tmp_path / "table.md").read_text()


def test_set_without_lesions_has_no_unhealthy_setup(made, tmp_path):
    run = new_job(made, tmp_path, ("anofpdm-ddim", "anoddpm-gaussian"))
    cohort = run.cohort
    healthy = np.isin(cohort.patients, ["p8", "p10"]) | (cohort.splits != "test")  # even patients have no lesion
    splits = np.where(healthy, cohort.splits, "train")
    bare = replace(run, cohort=replace(cohort, splits=splits))
    evaluate(bare)
    write_report(bare, {})
    assert set(bare.results()["anofpdm-ddim"]) == {"mixed"}
    assert "no slice of this set has a lesion" in (tmp_path / "index.html").read_text()


def test_slices_without_a_lesion_mask_are_left_out(made, tmp_path):
    """Without any, nothing is written."""
    run = new_job(made, tmp_path / "out")
    cohort, config = run.cohort, replace(run.config, sample=None)
    without = cohort.scans == cohort.scans[cohort.rows("test")[0]]
    kept = replace(run, cohort=replace(cohort, has_mask=~without), config=config).evaluation_set.rows
    assert set(cohort.rows("test")) - set(kept) == set(np.flatnonzero(without))
    with pytest.raises(EvaluationError, match="no slice of the 'test' split has a lesion mask"):
        evaluate(replace(run, cohort=replace(cohort, has_mask=np.zeros_like(without))))
    assert not (tmp_path / "out").exists()
