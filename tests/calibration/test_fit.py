"""Calibration of a model on a cohort."""

import functools
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage
from typer.testing import CliRunner

import anofpdm
from anofpdm.calibration import signal_choice
from anofpdm.calibration.calibration_file import save_calibration, to_json
from anofpdm.calibration.figure import draw_calibration
from anofpdm.calibration.fit_calibration import (
    CalibrationConfig,
    compact,
    fit_calibration,
    foreground_range,
    foreground_share,
)
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import (
    CalibrationError,
    ConfigError,
    ModelError,
)
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.evidence import EvidenceSettings, SignalMaps, concatenate
from anofpdm.method.gather import EvidenceRequest, evidence_batches, slice_seeds
from anofpdm.network.predictor import load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Signal
from anofpdm.util.files import folder_lock
from tests import toys
from tests.segment.known_model import Rounding

CPU = torch.device("cpu")
SMALL = CalibrationConfig(levels=4, strengths=(0.0, 2.0), split="train", batch=64)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toys.untrained(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def fit(made):
    """Fits a calibration to the cohort with a configuration; once for each."""
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    return functools.cache(lambda config: fit_calibration(model, cohort, config))


def test_lesion_masks_of_the_cohort_have_no_influence(made, fit, tmp_path):
    model, with_masks = load_trained(made / "model", CPU), fit(SMALL).calibration
    shutil.copytree(made / "cohort", tmp_path / "cohort")
    shutil.rmtree(tmp_path / "cohort" / "truth")
    without = fit_calibration(model, open_cohort(tmp_path / "cohort"), SMALL).calibration
    assert to_json(without) == to_json(with_masks)


def test_a_missing_calibration_or_one_of_another_checkpoint_is_refused(made, fit, tmp_path):
    fitted = fit(SMALL)
    save_calibration(fitted.calibration, draw_calibration(fitted), made / "model")
    shutil.copytree(made / "model", tmp_path / "m")
    payload = json.loads((tmp_path / "m" / "calibration.json").read_text())
    (tmp_path / "m" / "calibration.json").write_text(json.dumps({**payload, "checkpoint_sha256": "f" * 64}))
    with pytest.raises(CalibrationError, match="another checkpoint"):
        anofpdm.load(tmp_path / "m", "cpu")
    (tmp_path / "m" / "calibration.json").unlink()
    with pytest.raises(CalibrationError, match="anofpdm calibrate"):
        anofpdm.load(tmp_path / "m", "cpu")


def test_maps_of_agreement_change_only_what_depends_on_maps(made):
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    steps = []
    options = replace(SMALL, context_mm=0.0, signal="error")
    usual = fit_calibration(model, cohort, options)
    other = fit_calibration(
        model, cohort, replace(options, signal="agreement"), lambda _task, *at: steps.append(at)
    ).calibration
    assert other.settings == replace(usual.calibration.settings, signal="agreement")
    (fitted,), (fitted_usually,) = other.fitted, usual.calibration.fitted
    same = {"settings": usual.calibration.settings, "fitted": usual.calibration.fitted}
    assert replace(other, **same) == usual.calibration
    assert fitted.curve_accuracy == fitted_usually.curve_accuracy

    rows = cohort.rows("train")
    healthy = rows[cohort.labels[rows] == 0]
    again = anofpdm.method.forward_evidence(
        model.predict,
        torch.from_numpy(cohort.pixels(healthy)).float(),
        levels=other.settings.levels,
        strengths=[other.strength],
        schedule=NoiseSchedule.linear(),
        seeds=slice_seeds(cohort.indices[healthy], SMALL.seed),
        signal="agreement",
    )
    smooth = [ndimage.median_filter(image, 5, mode="reflect") for image in again.maps[:, 0].numpy()]
    assert fitted.healthy_threshold == pytest.approx(np.percentile(smooth, 99.8), rel=1e-2)
    assert fitted.healthy_threshold != pytest.approx(fitted_usually.healthy_threshold, rel=1e-2)
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1]


def test_signal_auto_uses_the_maps_that_stand_out_most(made, fit, monkeypatch):
    """Thresholds are then those of a calibration for these maps."""
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    assert SMALL.signal == "auto"
    for best, signal in ((0.0, "error"), (1 / 3, "agreement")):  # a third is also what --signal agreement uses
        monkeypatch.setattr(signal_choice, "contrast", lambda _calibration, _maps, share, best=best: -abs(share - best))
        chosen = fit_calibration(model, cohort, SMALL).calibration
        assert to_json(chosen) == to_json(fit(replace(SMALL, signal=signal)).calibration)
    monkeypatch.setattr(signal_choice, "contrast", lambda _calibration, _maps, share: share)
    chosen = fit_calibration(model, cohort, SMALL).calibration
    assert (chosen.settings.signal, chosen.settings.gradient_share) == ("agreement", 2 / 3)


def test_an_unknown_signal_is_refused():
    with pytest.raises(ConfigError, match="unknown signal 'x'; choose one of auto, error"):
        replace(SMALL, signal="x")


def test_segmentation_uses_the_calibrated_signal(made, tmp_path, monkeypatch):
    shutil.copytree(made / "model", tmp_path / "m")
    words = ["calibrate", str(tmp_path / "m"), str(made / "cohort"), "--levels", "3", "--strengths", "0,2"]
    words += ["--split", "train", "--most", "40", "--device", "cpu"]
    files = {name: made / "scans" / "p1" / f"p1_{name}.nii.gz" for name in ("flair", "t2")}
    maps = {}
    for signal in ("error", "agreement"):
        done = CliRunner().invoke(app, [*words, "--signal", signal])
        assert done.exit_code == 0, done.output
        assert f"maps of {signal}" in done.output
        found = anofpdm.load(tmp_path / "m", device="cpu").segment(files)
        assert found.summary["settings"]["signal"] == signal
        maps[signal] = found.anomaly_map
    assert not np.allclose(maps["error"], maps["agreement"])
    monkeypatch.setattr(signal_choice, "contrast", lambda _calibration, _maps, share: -abs(share - 1 / 3))
    done = CliRunner().invoke(app, words)
    assert "using maps of agreement, 33% gradient" in done.output
    assert np.allclose(anofpdm.load(tmp_path / "m", device="cpu").segment(files).anomaly_map, maps["agreement"])
    monkeypatch.setattr(signal_choice, "contrast", lambda _calibration, _maps, share: share)
    assert "67% gradient" in CliRunner().invoke(app, words).output
    found = anofpdm.load(tmp_path / "m", device="cpu").segment(files)
    assert found.summary["settings"]["gradient_share"] == 2 / 3
    assert not np.allclose(found.anomaly_map, maps["agreement"])


def test_a_locked_model_is_not_calibrated(made):
    with folder_lock(made / "model"):
        done = CliRunner().invoke(app, ["calibrate", str(made / "model"), str(made / "cohort"), "--device", "cpu"])
    assert done.exit_code == 1
    assert "another run is writing here" in done.output


def test_a_cohort_with_other_modalities_or_size_is_refused(made, tmp_path):
    model = load_trained(made / "model", CPU)
    prepare(plan_cohort("brats21", made / "scans", size=16, modalities=("t2",)), tmp_path / "t2")
    prepare(plan_cohort("brats21", made / "scans", size=24), tmp_path / "large")
    with pytest.raises(CalibrationError, match="--modalities flair,t2"):
        fit_calibration(model, open_cohort(tmp_path / "t2"), SMALL)
    with pytest.raises(CalibrationError, match="--size 16"):
        fit_calibration(model, open_cohort(tmp_path / "large"), SMALL)
    with pytest.raises(ModelError, match="only on flair, t2"):
        fit_calibration(model, open_cohort(made / "cohort"), replace(SMALL, score=("t1",)))


def test_a_single_class_is_refused_before_the_network_runs(made):
    cohort = open_cohort(made / "cohort")
    healthy = replace(cohort, labels=np.full(len(cohort), HEALTHY))
    model = replace(load_trained(made / "model", CPU), predict=None)
    with pytest.raises(CalibrationError, match=r"need both classes.*--most.*--split"):
        fit_calibration(model, healthy, SMALL)


def test_the_foreground_range_is_of_whole_scans(made):
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    labels = cohort.labels.copy()
    labels[cohort.indices < 10] = NULL
    some = replace(cohort, labels=labels)
    whole = [foreground_share(cohort.pixels(np.flatnonzero(cohort.scans == scan))) for scan in np.unique(cohort.scans)]
    assert foreground_range(some, np.unique(cohort.scans)) == (min(whole), max(whole))
    low, high = fit_calibration(model, some, SMALL).calibration.foreground
    assert min(whole) <= low <= high <= max(whole)


def test_compact_maps_beyond_half_precision_stay_finite():
    pixels = np.zeros((1, 2, 8, 8), np.float32)
    request = EvidenceRequest(EvidenceSettings(tuple(range(0, 600, 100)), (0, 1)), [0.0, 3.0], CPU, 1)
    found = concatenate(evidence_batches(Rounding(), lambda rows: pixels[rows], slice_seeds(range(1)), request))
    large = SignalMaps(torch.full_like(found.maps, 1e6), found.last_maps)
    kept = compact(replace(found, maps_by_signal={Signal.ERROR: large}))
    assert kept.maps.dtype == torch.float16
    assert kept.maps.isfinite().all()


def test_labels_of_whole_scans(made, tmp_path):
    """Slices of scans that are labelled unhealthy as a whole are given labels, and calibration uses them."""
    shutil.copytree(made / "model", tmp_path / "model")
    source, folder = toys.brats_cohort(tmp_path / "scans", 4, masks=False), tmp_path / "cohort"
    (source / "labels.csv").write_text("subject,slice,label\np0,,healthy\np1,,healthy\np2,,unhealthy\np3,,unhealthy\n")
    (tmp_path / "split.csv").write_text("patient,split\n" + "".join(f"p{number},train\n" for number in range(4)))
    preparing = ("prepare", "nifti", source, folder, "--size", 16, "--split", tmp_path / "split.csv", "--raw", "never")
    assert CliRunner().invoke(app, [*map(str, preparing)]).exit_code == 0
    cohort = open_cohort(folder)
    fitted = fit_calibration(load_trained(tmp_path / "model", CPU), cohort, SMALL)
    scans = fitted.gathered.positions.scans
    healthy_scan = np.isin(scans, ("p0", "p1"))
    assert (fitted.labels[healthy_scan] == HEALTHY).all()
    assert set(fitted.labels[~healthy_scan].tolist()) <= {HEALTHY, UNHEALTHY}
    assert all((fitted.labels[scans == scan] == UNHEALTHY).any() for scan in ("p2", "p3"))
    np.testing.assert_array_equal(fitted.gathered.suspected, ~healthy_scan)
    assert fitted.calibration.n_estimated == cohort.suspected.sum()
    words = ("calibrate", tmp_path / "model", folder, "--split", "train", "--levels", 4, "--strengths", "0,2")
    done = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert f"labels of {cohort.suspected.sum()} slices were estimated" in done.output
