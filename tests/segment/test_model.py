"""From a scan to a mask, with a denoiser whose answer is known."""

import csv
import hashlib

import nibabel as nib
import numpy as np
import pytest
import torch

import anofpdm
from anofpdm.errors import (
    ConfigError,
    ScanError,
    ScanWarning,
)
from anofpdm.method import NoiseSchedule, forward_evidence
from anofpdm.method.evidence import EvidenceSettings
from anofpdm.method.gather import slice_seeds
from anofpdm.scans import read_scan, scan_slices
from anofpdm.scans.expects import ScanExpectation
from anofpdm.segment.outputs import ANOMALY_MAP, FINDINGS, MASK, REPORT, SLICES, SUMMARY
from tests import toys
from tests.segment.known_model import BY_HEALTHY, SHAPE, SIZE, known_model, scan_files, summary_of, with_network


@pytest.mark.parametrize("axes", ["RAS", "LPS", "ASR", "PIR", "SLA", "IPL"])
def test_the_mask_overlays_the_lesion_in_any_orientation(axes, tmp_path):
    files, lesion, _ = scan_files(tmp_path, axes)
    result = known_model().segment(files, **BY_HEALTHY)
    assert toys.dice(result.mask, lesion) > 0.9
    assert result.mask.shape == SHAPE
    (finding,) = result.findings
    np.testing.assert_allclose(finding.centre_mm, (6, -5, 4), atol=1.0)
    assert finding.volume_ml == pytest.approx(lesion.sum() / 1000, rel=0.15)
    inside, outside = result.anomaly_map[lesion].mean(), result.anomaly_map[~lesion].mean()
    assert inside > 20 * outside
    result.save(tmp_path / "out")
    for name, dtype in ((MASK, np.uint8), (ANOMALY_MAP, np.float32)):
        image = nib.Nifti1Image.from_filename(tmp_path / "out" / name)
        np.testing.assert_array_equal(image.affine, nib.Nifti1Image.from_filename(files["flair"]).affine)
        assert image.get_data_dtype() == dtype
        slope = float(image.header["scl_slope"])
        assert np.isnan(slope) or slope in (0.0, 1.0)
    np.testing.assert_array_equal(nib.Nifti1Image.from_filename(tmp_path / "out" / MASK).get_fdata() > 0, result.mask)
    saved = nib.Nifti1Image.from_filename(tmp_path / "out" / ANOMALY_MAP).get_fdata()
    np.testing.assert_allclose(saved, result.anomaly_map, rtol=0, atol=4e-6)


def test_tables_and_summary_agree_with_the_mask(tmp_path):
    files, lesion, _ = scan_files(tmp_path, spacing=(1.0, 1.0, 1.0))
    result = known_model().segment(files, **BY_HEALTHY)
    result.save(tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / SLICES).open()))
    assert all(int(row["number"]) == int(row["slice"]) + 1 for row in rows)  # counted from 1, as pictures do
    with_mask = [int(row["slice"]) for row in rows if float(row["area_mm2"]) > 0]
    slices_of_ball = np.flatnonzero(lesion.any(axis=(0, 1)))  # LPS: the third axis is inferior to superior
    assert set(with_mask) <= set(slices_of_ball.tolist())
    assert len(with_mask) >= len(slices_of_ball) - 4
    volume = sum(float(row["area_mm2"]) for row in rows) / 1000
    summary = summary_of(tmp_path / "out")
    assert summary["volume_ml"] == pytest.approx(volume, rel=0.1)
    assert summary["volume_ml"] == pytest.approx(result.mask.sum() / 1000, rel=1e-6)
    assert summary["settings"]["model_sha256"] == "same"
    assert {len(image["sha256"]) for image in summary["inputs"].values()} == {64}
    assert all(row["detected"] == "1" for row in rows if float(row["area_mm2"]) > 0)
    (finding,) = csv.DictReader((tmp_path / "out" / FINDINGS).open())
    assert float(finding["volume_ml"]) == pytest.approx(summary["volume_ml"], rel=1e-3)
    assert float(finding["peak"]) == pytest.approx(float(result.anomaly_map.max()), rel=1e-3)


def test_the_report_is_optional_and_written_before_the_summary(tmp_path, monkeypatch):
    files, _, _ = scan_files(tmp_path)
    result = known_model().segment(files, **BY_HEALTHY)
    result.save(tmp_path / "without", report=False)
    assert not (tmp_path / "without" / REPORT).exists()
    (tmp_path / "anna").mkdir()
    monkeypatch.chdir(tmp_path / "anna")
    result.save(".", picture=False)
    report = (tmp_path / "anna" / REPORT).read_text()
    assert "<h1>anna</h1>" in report
    assert str(tmp_path) not in report
    assert (tmp_path / "anna" / REPORT).stat().st_mtime_ns <= (tmp_path / "anna" / SUMMARY).stat().st_mtime_ns


def test_the_report_shows_the_pixels_and_curves_of_the_network(tmp_path):
    files, _, _ = scan_files(tmp_path)
    model = known_model(settings=EvidenceSettings((0, 20, 40), (1,)))
    result = model.segment(files, **BY_HEALTHY)
    display, curves = result.display, result.decisions.evidence
    slices = scan_slices(read_scan(files), SIZE)
    assert display.modalities == ("t2",)
    np.testing.assert_allclose(display.pixels[:, 0], slices.pixels[:, 1], atol=1e-3)
    evidence = forward_evidence(
        model.diffusion.network.predict,
        torch.from_numpy(slices.pixels),
        levels=(0, 20, 40),
        strengths=[model.diffusion.calibration.strength],
        schedule=NoiseSchedule.linear(),
        seeds=slice_seeds(slices.indices),
        channels=(1,),
    )
    assert curves.levels == (0, 20, 40)
    np.testing.assert_array_equal(curves.divergence, evidence.divergence[:, 0])
    np.testing.assert_array_equal(curves.mse_guided, evidence.mse_guided[:, 0])
    np.testing.assert_array_equal(curves.mse_unguided, evidence.mse_unguided)
    assert (display.rules.engine, display.rules.cosine_cut, display.rules.healthy_level) == ("diffusion", 0.9, 0.5)


def test_a_healthy_scan_has_an_empty_mask_and_no_findings(tmp_path):
    files, _, _ = scan_files(tmp_path, radius=-1.0)
    result = known_model().segment(files, **BY_HEALTHY)
    assert not result.mask.any()
    assert (result.findings, result.volume_ml) == ([], 0)


def test_batch_size_and_order_of_files_do_not_change_the_result(tmp_path):
    files, _, _ = scan_files(tmp_path)
    whole = known_model().segment(files, **BY_HEALTHY)
    other = known_model().segment(dict(reversed(files.items())), **BY_HEALTHY, batch=3)
    np.testing.assert_array_equal(whole.anomaly_map, other.anomaly_map)
    np.testing.assert_array_equal(whole.mask, other.mask)


class TestBadScans:
    def test_a_scan_with_skull_gives_a_warning_and_can_be_masked(self, tmp_path):
        files, lesion, affine = scan_files(tmp_path)
        narrow = known_model(foreground=(0.05, 0.2))
        with pytest.warns(ScanWarning, match="skull-stripped"):
            whole = narrow.segment(files, **BY_HEALTHY)
        assert "skull-stripped" in whole.summary.warnings[0]
        brain = toys.save(tmp_path / "brain.nii.gz", toys.ball(affine, SHAPE, (0, 0, 0), 13).astype(np.uint8), affine)
        bare = narrow.segment(files, brain_mask=brain, **BY_HEALTHY)
        sha256 = hashlib.sha256(brain.read_bytes()).hexdigest()  # another mask is another option
        assert bare.summary.settings["brain_mask"] == f"sha256 {sha256}"
        assert bare.anomaly_map[~toys.ball(affine, SHAPE, (0, 0, 0), 16)].max() < 0.05
        assert (bare.mask & lesion).any()

    @pytest.mark.parametrize(
        ("expected_mm", "hint"),
        [(60.0, r"its slices show 88 mm, in training 60 mm; --raw always crops them"), (88.0, "is it cropped")],
    )
    def test_a_scan_with_much_around_the_brain_gives_a_warning(self, expected_mm, hint, tmp_path):
        files, _, _ = scan_files(tmp_path, spacing=(2.0, 2.0, 2.0))
        model = known_model(foreground=(0.9, 0.95))
        model = with_network(model, expects=ScanExpectation(field_of_view_mm=expected_mm))
        with pytest.warns(ScanWarning, match=hint):
            model.segment(files, **BY_HEALTHY)

    def test_a_modality_that_is_empty_inside_the_brain_mask_is_named(self, tmp_path):
        files, _, affine = scan_files(tmp_path)
        toys.save(files["t2"], toys.ball(affine, SHAPE, (10, 0, 0), 4).astype(np.int16), affine)
        brain = toys.save(tmp_path / "b.nii.gz", toys.ball(affine, SHAPE, (-8, 0, 0), 4).astype(np.uint8), affine)
        with pytest.raises(ScanError, match="the t2 image is empty inside"):
            known_model().segment(files, brain_mask=brain)

    def test_only_needed_modalities_are_read(self, tmp_path):
        files, _, _ = scan_files(tmp_path)
        result = known_model().segment({**files, "t1": tmp_path / "gone.nii.gz"}, **BY_HEALTHY)
        assert list(result.summary.inputs) == ["flair", "t2"]


def test_an_unknown_device_is_refused():
    for word in ("gpu", "meta", "cuda:77"):
        with pytest.raises(ConfigError, match=f"device {word}"):
            anofpdm.load("phantom-stroke", word)
