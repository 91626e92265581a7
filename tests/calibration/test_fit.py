"""Calibration of a model on a cohort."""

import functools
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import ndimage

import anofpdm
from anofpdm.calibration import signal_choice
from anofpdm.calibration.calibration_file import to_json
from anofpdm.calibration.fit_calibration import (
    CalibrationConfig,
    compact,
    fit_calibration,
)
from anofpdm.choices import Signal
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.store import DARK
from anofpdm.errors import CalibrationError, ModelError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.evidence import SignalMaps
from anofpdm.util.files import folder_lock
from tests import toys
from tests.commands import run
from tests.method.worlds import made_up

SMALL = CalibrationConfig(levels=4, strengths=(0.0, 2.0), split="train", batch=64)
QUICK = ("--levels", "3", "--strengths", "0,2", "--split", "train", "--most", "20", "--device", "cpu")


@pytest.fixture(scope="module")
def fit(model, cohort):
    """Fits a calibration to the cohort with a configuration; once for each."""
    return functools.cache(lambda config: fit_calibration(model, cohort, config))


def prefer(share):
    """As the contrast of a share of the gradient."""
    return lambda _calibration, _evidence, _unhealthy, _inside, other: -abs(other - share)


def test_lesion_masks_of_the_cohort_have_no_influence(made, model, fit, tmp_path):
    shutil.copytree(made / "cohort", tmp_path / "cohort")
    shutil.rmtree(tmp_path / "cohort" / "truth")
    without, _ = fit_calibration(model, open_cohort(tmp_path / "cohort"), SMALL)
    assert to_json(without) == to_json(fit(SMALL)[0])


def test_maps_of_agreement_change_only_what_depends_on_maps(fit):
    usual, _ = fit(replace(SMALL, signal="error"))
    other, gathered = fit(replace(SMALL, signal="agreement"))
    assert other.settings == replace(usual.settings, signal="agreement")
    assert replace(other, settings=usual.settings, fitted=usual.fitted) == usual
    assert other.fitted[0].curve_accuracy == usual.fitted[0].curve_accuracy
    maps = gathered.evidence.at(other.strength).with_maps_of(other.settings).maps[gathered.labels == HEALTHY, 0]
    smooth = [ndimage.median_filter(image, 5, mode="reflect") for image in maps.float().numpy()]
    assert other.fitted[0].healthy_threshold == pytest.approx(np.percentile(smooth, 99.8))
    assert other.fitted[0].healthy_threshold != pytest.approx(usual.fitted[0].healthy_threshold, rel=1e-2)


@pytest.mark.parametrize(("share", "signal"), [(0.0, "error"), (1 / 3, "agreement")])
def test_signal_auto_uses_the_maps_that_stand_out_most(fit, monkeypatch, share, signal):
    """Thresholds are then those of a calibration for these maps. A third is also what --signal agreement uses."""
    monkeypatch.setattr(signal_choice, "contrast", prefer(share))
    _, gathered = fit(SMALL)
    assert to_json(gathered.fit(SMALL)) == to_json(gathered.fit(replace(SMALL, signal=signal)))


def test_segmentation_uses_the_calibrated_signal(made, tmp_path, monkeypatch):
    shutil.copytree(made / "model", tmp_path / "m")
    files = {name: made / "scans" / "p1" / f"p1_{name}.nii.gz" for name in ("flair", "t2")}
    maps = {}
    for signal, share in (("error", 0.0), ("agreement", 2 / 3)):
        monkeypatch.setattr(signal_choice, "contrast", prefer(share))
        done = run("calibrate", tmp_path / "m", made / "cohort", *QUICK)
        assert ("maps of agreement, 67% gradient" in done.output) == (signal == "agreement")
        result = anofpdm.load(tmp_path / "m", device="cpu").segment(files)
        assert result.summary.settings["signal"] == signal
        maps[signal] = result.anomaly_map
    assert result.summary.settings["gradient_share"] == 2 / 3
    assert not np.allclose(maps["error"], maps["agreement"])


def test_a_locked_model_is_not_calibrated(made):
    with folder_lock(made / "model"):
        done = run("calibrate", made / "model", made / "cohort", "--device", "cpu", code=1)
    assert "another run is writing here" in done.output


@pytest.mark.parametrize(
    ("options", "remedy"), [({"size": 16, "modalities": ("t2",)}, "--modalities flair,t2"), ({"size": 24}, "--size 16")]
)
def test_a_cohort_with_other_modalities_or_size_is_refused(made, model, tmp_path, options, remedy):
    prepare(plan_cohort("brats21", made / "scans", **options), tmp_path / "other")
    with pytest.raises(CalibrationError, match=remedy):
        fit_calibration(model, open_cohort(tmp_path / "other"), SMALL)


def test_what_cannot_be_calibrated_is_refused_before_the_network_runs(model, cohort):
    idle = replace(model, predict=SimpleNamespace(device=model.device))
    with pytest.raises(ModelError, match="only on flair, t2"):
        fit_calibration(idle, cohort, replace(SMALL, score=("t1",)))
    healthy = replace(cohort, labels=np.full(len(cohort), HEALTHY))
    with pytest.raises(CalibrationError, match=r"need both classes.*--most.*--split"):
        fit_calibration(idle, healthy, SMALL)
    with pytest.raises(CalibrationError, match="no slice of its split 'train' is labelled"):
        fit_calibration(idle, replace(cohort, labels=np.full(len(cohort), NULL)), SMALL)


def test_the_foreground_range_is_of_whole_scans(cohort, fit):
    scans = np.unique(cohort.scans[cohort.rows("train")])
    inside = (cohort.pixels(np.flatnonzero(cohort.scans == scan)).mean(axis=1) > DARK for scan in scans)
    shares = [brain.mean() for brain in inside]
    assert fit(SMALL)[0].foreground == (min(shares), max(shares))


def test_compact_maps_beyond_half_precision_stay_finite():
    evidence, _, _ = made_up(4)
    large = SignalMaps(torch.full_like(evidence.maps, 1e6), evidence.last_maps)
    kept = compact(replace(evidence, maps_by_signal={Signal.ERROR: large}))
    assert kept.maps.dtype == torch.float16
    assert kept.maps.isfinite().all()


def test_labels_of_whole_scans(made, model, tmp_path):
    """Slices of scans that are labelled unhealthy as a whole are given labels, and calibration uses them."""
    source, folder = toys.brats_cohort(tmp_path / "scans", 4, masks=False), tmp_path / "cohort"
    (source / "labels.csv").write_text("subject,slice,label\np0,,healthy\np1,,healthy\np2,,unhealthy\np3,,unhealthy\n")
    (tmp_path / "split.csv").write_text("patient,split\np0,train\np1,train\np2,train\np3,train\n")
    run("prepare", "nifti", source, folder, "--size", 16, "--split", tmp_path / "split.csv", "--raw", "never")
    cohort = open_cohort(folder)
    calibration, gathered = fit_calibration(model, cohort, SMALL)
    scans, labels = gathered.positions.scans, gathered.labels
    healthy_scan = np.isin(scans, ("p0", "p1"))
    assert (labels[healthy_scan] == HEALTHY).all()
    assert set(labels[~healthy_scan].tolist()) <= {HEALTHY, UNHEALTHY}
    assert all((labels[scans == scan] == UNHEALTHY).any() for scan in ("p2", "p3"))
    np.testing.assert_array_equal(gathered.suspected, ~healthy_scan)
    assert calibration.n_estimated == cohort.suspected.sum()
    shutil.copytree(made / "model", tmp_path / "model")
    done = run("calibrate", tmp_path / "model", folder, *QUICK, "--most", 99)
    assert f"labels of {cohort.suspected.sum()} slices were estimated" in done.output
