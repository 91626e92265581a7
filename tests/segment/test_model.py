"""From scans on disk to masks on disk, with a denoiser whose answer is known."""

import csv
import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from scipy import ndimage

import anofpdm
from anofpdm.calibration.figure import draw_calibration
from anofpdm.calibration.files import save_calibration, to_json
from anofpdm.calibration.fit import (
    CalibrationConfig,
    compact,
    fit_calibration,
    foreground_range,
    foreground_share,
    has_weak_maps,
)
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.inputs import find_targets
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import (
    CalibrationError,
    CohortError,
    ConfigError,
    MethodError,
    ModelError,
    ScanError,
    ScanWarning,
)
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.calibration import Candidate
from anofpdm.method.evidence import EvidenceSettings, SignalMaps, concatenate
from anofpdm.method.many_slices import EvidenceRequest, evidence_batches, gather_evidence, slice_seeds
from anofpdm.network.predictor import NoisePredictor, load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.scans import read_scan, scan_slices
from anofpdm.segment.engines import EngineSlices
from anofpdm.segment.outputs import ANOMALY_MAP, FINDINGS, MASK, REPORT, SLICES, SUMMARY
from anofpdm.util.files import folder_lock
from anofpdm.util.progress import silent
from tests import toys
from tests.method.worlds import FIELDS
from tests.segment.known_model import BY_HEALTHY, SHAPE, SIZE, Rounding, known_model, scan_files


@pytest.mark.parametrize("axes", ["RAS", "LPS", "ASR", "PIR", "SLA", "IPL"])
def test_the_mask_overlays_the_lesion_whatever_the_scans_orientation(axes, tmp_path):
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


def test_tables_and_summary_agree_with_the_mask(tmp_path):
    files, lesion, _ = scan_files(tmp_path, spacing=(1.0, 1.0, 1.0))
    result = known_model().segment(files, **BY_HEALTHY)
    result.save(tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / SLICES).open()))
    drawn = [int(row["slice"]) for row in rows if float(row["area_mm2"]) > 0]
    slices_of_ball = np.flatnonzero(lesion.any(axis=(0, 1)))  # LPS: the third axis is inferior to superior
    assert set(drawn) <= set(slices_of_ball.tolist())
    assert len(drawn) >= len(slices_of_ball) - 4
    volume = sum(float(row["area_mm2"]) for row in rows) / 1000
    said = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert said["volume_ml"] == pytest.approx(volume, rel=0.1)
    assert said["volume_ml"] == pytest.approx(result.mask.sum() / 1000, rel=1e-6)
    assert said["settings"]["model_sha256"] == "same"
    assert {len(one["sha256"]) for one in said["inputs"].values()} == {64}
    assert all(row["detected"] == "1" for row in rows if float(row["area_mm2"]) > 0)
    (finding,) = csv.DictReader((tmp_path / "out" / FINDINGS).open())
    assert float(finding["volume_ml"]) == pytest.approx(said["volume_ml"], rel=1e-3)
    assert float(finding["peak"]) == pytest.approx(float(result.anomaly_map.max()), rel=1e-3)


def test_the_report_is_written_before_the_summary_and_can_be_left_out(tmp_path, monkeypatch):
    files, _, _ = scan_files(tmp_path)
    result = known_model().segment(files, **BY_HEALTHY)
    result.save(tmp_path / "anna")
    said = (tmp_path / "anna" / REPORT).read_text()
    assert "<h1>anna</h1>" in said
    assert str(tmp_path) not in said
    assert (tmp_path / "anna" / REPORT).stat().st_mtime_ns <= (tmp_path / "anna" / SUMMARY).stat().st_mtime_ns
    result.save(tmp_path / "without", report=False)
    assert not (tmp_path / "without" / REPORT).exists()
    monkeypatch.chdir(tmp_path / "anna")
    result.save(".", picture=False)
    assert "<h1>anna</h1>" in (tmp_path / "anna" / REPORT).read_text()


def test_what_is_shown_is_what_the_network_saw_and_said(tmp_path):
    files, _, _ = scan_files(tmp_path)
    model = known_model(settings=EvidenceSettings((0, 20, 40), (1,)))
    display = model.segment(files, **BY_HEALTHY).display
    slices = scan_slices(read_scan(files), SIZE)
    assert display.modalities == ("t2",)
    np.testing.assert_allclose(display.pixels[:, 0], slices.pixels[:, 1], atol=1e-3)
    engine = model.request(**BY_HEALTHY, batch=100, seed=0).engine
    evidence = engine.gather_evidence(EngineSlices(slices.pixels, slices.indices, 1.0), silent)
    assert display.curves.levels == (0, 20, 40)
    np.testing.assert_array_equal(display.curves.divergence, evidence.divergence[:, 0])
    np.testing.assert_array_equal(display.curves.mse_guided, evidence.mse_guided[:, 0])
    np.testing.assert_array_equal(display.curves.mse_unguided, evidence.mse_unguided)
    assert (display.engine, display.cosine_cut, display.healthy_level) == ("diffusion", 0.9, 0.5)


def test_a_healthy_scan_has_an_empty_mask_and_no_findings(tmp_path):
    files, _, _ = scan_files(tmp_path, radius=-1.0)
    result = known_model().segment(files, **BY_HEALTHY)
    assert not result.mask.any()
    assert result.findings == []
    result.save(tmp_path / "out")
    assert json.loads((tmp_path / "out" / SUMMARY).read_text())["volume_ml"] == 0


def test_neither_batch_nor_order_of_files_changes_a_voxel(tmp_path):
    files, _, _ = scan_files(tmp_path)
    one = known_model().segment(files, **BY_HEALTHY)
    other = known_model().segment(dict(reversed(files.items())), **BY_HEALTHY, batch=3)
    np.testing.assert_array_equal(one.anomaly_map, other.anomaly_map)
    np.testing.assert_array_equal(one.mask, other.mask)


class TestBadScans:
    def test_a_missing_modality(self, tmp_path):
        files, _, _ = scan_files(tmp_path)
        with pytest.raises(ScanError, match=r"no t2 given; the model needs flair, t2 .* got flair"):
            known_model().segment({"flair": files["flair"]})

    def test_modalities_on_different_grids(self, tmp_path):
        files, _, affine = scan_files(tmp_path)
        toys.save(files["t2"], toys.head(SHAPE, affine=affine), affine + np.diag([0, 0, 0, 0]) + _shift(3.0))
        with pytest.raises(ScanError, match="not on the grid"):
            known_model().segment(files)

    def test_a_scan_with_its_skull_on_is_warned_of_and_can_be_stripped(self, tmp_path):
        files, lesion, affine = scan_files(tmp_path)
        narrow = known_model(foreground=(0.05, 0.2))
        with pytest.warns(ScanWarning, match="skull-stripped"):
            whole = narrow.segment(files, **BY_HEALTHY)
        assert "skull-stripped" in whole.summary["warnings"][0]
        brain = toys.save(tmp_path / "brain.nii.gz", toys.ball(affine, SHAPE, (0, 0, 0), 13).astype(np.uint8), affine)
        bare = narrow.segment(files, brain_mask=brain, **BY_HEALTHY)
        assert bare.anomaly_map[~toys.ball(affine, SHAPE, (0, 0, 0), 16)].max() < 0.05
        assert (bare.mask & lesion).any()

    def test_a_brain_mask_of_another_scan(self, tmp_path):
        files, _, affine = scan_files(tmp_path)
        elsewhere = toys.save(tmp_path / "b.nii.gz", np.zeros(SHAPE, np.uint8), affine)
        with pytest.raises(ScanError, match="the flair image is empty inside"):
            known_model().segment(files, brain_mask=elsewhere)

    def test_one_modality_outside_the_brain_mask_is_named(self, tmp_path):
        files, _, affine = scan_files(tmp_path)
        toys.save(files["t2"], toys.ball(affine, SHAPE, (10, 0, 0), 4).astype(np.int16), affine)
        brain = toys.save(tmp_path / "b.nii.gz", toys.ball(affine, SHAPE, (-8, 0, 0), 4).astype(np.uint8), affine)
        with pytest.raises(ScanError, match="the t2 image is empty inside"):
            known_model().segment(files, brain_mask=brain)

    def test_only_what_the_model_needs_is_read(self, tmp_path):
        files, _, _ = scan_files(tmp_path)
        result = known_model().segment({**files, "t1": tmp_path / "gone.nii.gz"}, **BY_HEALTHY)
        assert list(result.summary["inputs"]) == ["flair", "t2"]


def _shift(mm):
    moved = np.zeros((4, 4))
    moved[0, 3] = mm
    return moved


class TestTargets:
    def test_files_by_name_and_by_modality(self, tmp_path):
        files, _, _ = scan_files(tmp_path)
        (found,) = find_targets([str(path) for path in files.values()], ("flair", "t2"))
        assert found.subject.images == files
        odd = {name: path.rename(tmp_path / f"{number}.nii.gz") for number, (name, path) in enumerate(files.items())}
        (named,) = find_targets([f"{name}={path}" for name, path in odd.items()], ("flair", "t2"))
        assert named.subject.images == odd

    def test_one_modality_needs_no_word_for_it(self, tmp_path):
        toys.save(tmp_path / "anna.nii.gz", toys.head())
        toys.save(tmp_path / "ben.nii.gz", toys.head())
        found = find_targets([str(tmp_path)], ("t1",))
        assert [one.subject.name for one in found] == ["anna", "ben"]
        assert list(found[0].subject.images) == ["t1"]

    def test_relative_paths_have_the_folders_name(self, tmp_path, monkeypatch):
        files, _, _ = scan_files(tmp_path / "anna")
        for modality, path in files.items():
            path.rename(path.with_name(f"{modality}.nii.gz"))
        (tmp_path / "anna" / "below").mkdir()
        for here, before in (("anna", ""), ("anna/below", "../")):
            monkeypatch.chdir(tmp_path / here)
            words = [f"{before}flair.nii.gz", f"{before}t2.nii.gz"]
            assert [one.subject.name for one in find_targets(words, ("flair", "t2"))] == ["anna"]
            named = [f"flair={words[0]}", f"t2={words[1]}"]
            assert [one.subject.name for one in find_targets(named, ("flair", "t2"))] == ["anna"]

    def test_one_subject_with_two_runs_does_not_make_it_another_layout(self, tmp_path):
        for name in ("sub-01_FLAIR", "sub-01_T2w", "sub-02_run-1_FLAIR", "sub-02_run-2_FLAIR", "sub-02_T2w"):
            toys.save(tmp_path / name[:6] / "anat" / f"{name}.nii.gz", toys.head())
        toys.save(tmp_path / "derivatives" / "x" / "sub-03_FLAIR.nii.gz", toys.head())
        ours = tmp_path / "derivatives" / "anofpdm" / "sub-01" / "anat"
        toys.save(ours / "sub-01_label-lesion_desc-anofpdm_mask.nii.gz", toys.head())
        found = find_targets([str(tmp_path)], ("flair", "t2"))
        assert [(one.subject.name, one.bids, one.subject.mask) for one in found] == [
            ("sub-01", True, None), ("sub-02", True, None),
        ]  # fmt: skip
        assert "flair=FILE t2=FILE" in found[1].subject.problem

    def test_what_was_made_of_scans_is_no_scan(self, tmp_path):
        for name in ("anna", "anna_brain", "anna_brain_mask", "ben_t1", "ben_t1_brain", "carl_mask", "the_brain"):
            toys.save(tmp_path / f"{name}.nii.gz", toys.head())
        for name in ("out/anna/mask", "out/anna/anomaly_map", "derivatives/dora"):
            toys.save(tmp_path / f"{name}.nii.gz", toys.head())
        found = find_targets([str(tmp_path)], ("t1",))
        assert [one.subject.name for one in found] == ["anna", "ben", "the_brain"]

    def test_splits_are_of_prepared_cohorts(self, tmp_path):
        scan_files(tmp_path)
        with pytest.raises(CohortError, match="applies to prepared cohorts only"):
            find_targets([str(tmp_path)], ("flair", "t2"), "val")

    def test_a_prepared_cohort_leads_to_its_scans(self, tmp_path):
        source = toys.brats_cohort(tmp_path / "scans", 6)
        prepare(plan_cohort("brats21", source, size=16), tmp_path / "cohort")
        assert len(find_targets([str(tmp_path / "cohort")], ("flair", "t2"))) == 6
        some = find_targets([str(tmp_path / "cohort")], ("flair", "t2"), "val")
        assert 0 < len(some) < 6
        source.rename(tmp_path / "moved")
        with pytest.raises(CohortError, match="does not exist any more"):
            find_targets([str(tmp_path / "cohort")], ("flair", "t2"))

    @pytest.mark.parametrize(
        ("words", "match"),
        [
            (["nowhere"], "no such file or folder"),
            (["text.txt"], "not a NIfTI file"),
            (["empty"], "no scan found"),
            (["p_flair.nii.gz"], "no t2 image"),
            (["dwi=p_flair.nii.gz"], "choose from flair, t2"),
            (["flair=p_flair.nii.gz"], "no t2 image"),
            (["flair=gone.nii.gz", "t2=p_t2.nii.gz"], "no such file"),
            (["empty"], "no NIfTI or DICOM file"),
            (["p_flair.nii.gz"], "give the files as flair=FILE t2=FILE"),
            (["flair=p_flair.nii.gz", "flair=p_t2.nii.gz"], "duplicate flair"),
            (["odd/.._flair.nii.gz", "odd/.._t2.nii.gz"], "rename the file"),
        ],
    )
    def test_mistakes(self, words, match, tmp_path, monkeypatch):
        scan_files(tmp_path)
        scan_files(tmp_path / "odd", name="..")
        (tmp_path / "empty").mkdir()
        (tmp_path / "text.txt").write_text("x")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CohortError, match=match):
            find_targets(words, ("flair", "t2"))


# ---- with a network --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toys.untrained(tmp_path_factory.mktemp("made"))


CPU = torch.device("cpu")
SMALL = CalibrationConfig(levels=6, strengths=(0.0, 2.0), split="train", batch=16)


def test_a_cohort_without_masks_calibrates_the_same(made, tmp_path):
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    with_masks = fit_calibration(model, cohort, SMALL).calibration
    import shutil

    shutil.copytree(made / "cohort", tmp_path / "cohort")
    shutil.rmtree(tmp_path / "cohort" / "truth")
    without = fit_calibration(model, open_cohort(tmp_path / "cohort"), SMALL).calibration
    assert to_json(without) == to_json(with_masks)


def test_load_segment_and_save_as_the_readme_does(made, tmp_path):
    model = load_trained(made / "model", CPU)
    fitted = fit_calibration(model, open_cohort(made / "cohort"), SMALL)
    save_calibration(fitted.calibration, draw_calibration(fitted), made / "model")
    loaded = anofpdm.load(made / "model", device="cpu")
    files = {name: made / "scans" / "p1" / f"p1_{name}.nii.gz" for name in ("flair", "t2")}
    result = loaded.segment(files)
    assert result.mask.shape == nib.Nifti1Image.from_filename(files["flair"]).shape
    assert len(result.slices) > 5
    result.save(tmp_path)
    assert (tmp_path / MASK).is_file()


def test_the_command_writes_reports_unless_told_otherwise(made, tmp_path):
    from typer.testing import CliRunner

    from anofpdm.cli.main import app

    fitted = fit_calibration(load_trained(made / "model", CPU), open_cohort(made / "cohort"), SMALL)
    save_calibration(fitted.calibration, draw_calibration(fitted), made / "model")
    words = ["segment", str(made / "model"), str(made / "scans" / "p1"), "--device", "cpu", "--no-pictures"]
    for more, written in (([], True), (["--no-report"], False)):
        out = tmp_path / str(written)
        done = CliRunner().invoke(app, [*words, "--out", str(out), *more])
        assert done.exit_code == 0, done.output
        assert [path.name for path in out.rglob("*.html")] == ([REPORT] if written else [])


def test_a_calibration_of_another_checkpoint_is_refused(made, tmp_path):
    import shutil

    model = load_trained(made / "model", CPU)
    fitted = fit_calibration(model, open_cohort(made / "cohort"), SMALL)
    save_calibration(fitted.calibration, draw_calibration(fitted), made / "model")
    shutil.copytree(made / "model", tmp_path / "m")
    said = json.loads((tmp_path / "m" / "calibration.json").read_text())
    (tmp_path / "m" / "calibration.json").write_text(json.dumps({**said, "checkpoint_sha256": "f" * 64}))
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


@pytest.mark.parametrize(("weak", "signal"), [(0.0, "error"), (1.01, "agreement")])
def test_where_maps_of_errors_are_weak_labels_choose_agreement(made, monkeypatch, weak, signal):
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    monkeypatch.setattr("anofpdm.calibration.fit.WEAK_MAPS", weak)
    assert SMALL.signal == "auto"
    chosen = fit_calibration(model, cohort, SMALL).calibration
    assert chosen.settings.signal == signal
    asked = fit_calibration(model, cohort, replace(SMALL, signal=signal)).calibration
    assert to_json(chosen) == to_json(asked)


def test_maps_of_the_chosen_strength_are_what_counts(made):
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    found = fit_calibration(model, cohort, SMALL).calibration
    for map_auc, signal in ((0.849, "agreement"), (0.851, "error")):
        candidates = Candidate(2.0, 0.9, 0.9, 0.9, 1.7 - map_auc), Candidate(5.0, 0.9, 0.9, 0.9, map_auc)
        by_errors = replace(found, candidates=candidates, strength=5.0)
        assert has_weak_maps(by_errors) == (signal == "agreement")


def test_an_unknown_signal_is_refused():
    with pytest.raises(ConfigError, match="unknown signal 'x'; choose one of auto, error"):
        replace(SMALL, signal="x")


def test_a_model_calibrated_for_agreement_segments_by_it(made, tmp_path):
    import shutil

    from typer.testing import CliRunner

    from anofpdm.cli.main import app

    shutil.copytree(made / "model", tmp_path / "m")
    words = ["calibrate", str(tmp_path / "m"), str(made / "cohort"), "--levels", "6", "--strengths", "0,2"]
    words += ["--split", "train", "--device", "cpu"]
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
    done = CliRunner().invoke(app, words)  # of a toy that hardly knows its lesions
    assert "below 0.85: using maps of agreement" in done.output
    assert np.allclose(anofpdm.load(tmp_path / "m", device="cpu").segment(files).anomaly_map, maps["agreement"])


def test_a_model_that_is_being_calibrated_or_trained_is_not_calibrated_too(made):
    from typer.testing import CliRunner

    from anofpdm.cli.main import app

    with folder_lock(made / "model"):
        done = CliRunner().invoke(app, ["calibrate", str(made / "model"), str(made / "cohort"), "--device", "cpu"])
    assert done.exit_code == 1
    assert "another run is writing here" in done.output


def test_another_cohort_than_the_models_is_refused(made, tmp_path):
    model = load_trained(made / "model", CPU)
    prepare(plan_cohort("brats21", made / "scans", size=16, modalities=("t2",)), tmp_path / "t2")
    prepare(plan_cohort("brats21", made / "scans", size=24), tmp_path / "large")
    with pytest.raises(CalibrationError, match="--modalities flair,t2"):
        fit_calibration(model, open_cohort(tmp_path / "t2"), SMALL)
    with pytest.raises(CalibrationError, match="--size 16"):
        fit_calibration(model, open_cohort(tmp_path / "large"), SMALL)
    with pytest.raises(ModelError, match="only on flair, t2"):
        fit_calibration(model, open_cohort(made / "cohort"), replace(SMALL, score=("t1",)))


def evidence(predict, pixels, batch):
    settings = EvidenceSettings(tuple(range(0, 600, 100)), (0, 1))
    request = EvidenceRequest(settings, [0.0, 3.0], CPU, batch)
    return gather_evidence(predict, lambda rows: pixels[rows], slice_seeds(range(len(pixels))), request)


def test_with_a_network_the_batch_changes_curves_by_less_than_1e_4(made):
    predict = load_trained(made / "model", CPU).predict
    pixels = open_cohort(made / "cohort").pixels(np.arange(14))
    one, other = evidence(predict, pixels, 14), evidence(predict, pixels, 4)
    check_alike(one, other)


def check_alike(one, other):
    """Curves to 1e-4, as the specification has it; single pixels of maps less closely."""
    for name in FIELDS:
        near = 1e-2 if "maps" in name else 1e-4
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=near, atol=1e-2 * near)


def test_when_memory_is_short_the_result_is_the_same_in_smaller_portions(made):
    trained = load_trained(made / "model", CPU).predict
    pixels = open_cohort(made / "cohort").pixels(np.arange(10))
    largest = []

    class Cramped(NoisePredictor):
        def _forward(self, x, levels, labels):
            if len(x) > 6:
                raise torch.OutOfMemoryError("out of memory")
            largest.append(len(x))
            return super()._forward(x, levels, labels)

    cramped = Cramped(trained.network, CPU)
    one, other = evidence(trained, pixels, 10), evidence(cramped, pixels, 10)
    assert max(largest) == cramped.max_batch == 5
    check_alike(one, other)

    class Full(NoisePredictor):
        def _forward(self, *_):
            raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(ModelError, match="not enough memory"):
        evidence(Full(trained.network, CPU), pixels, 4)


def test_when_memory_is_short_beside_the_network_the_batch_is_halved():
    pixels = np.random.default_rng(0).uniform(-1, 1, (7, 2, 8, 8)).astype(np.float32)
    largest, progress = 3, []

    def gather(on_level=None):
        request = EvidenceRequest(EvidenceSettings((0, 20, 40), (0,)), [0.0], CPU, 7)
        record = lambda _task, *at: progress.append(at)  # noqa: E731
        seeds = slice_seeds(range(7))
        return concatenate(
            list(evidence_batches(Rounding(), lambda rows: pixels[rows], seeds, request, record, on_level))
        )

    def cramped(level, signal_map):
        if len(signal_map()) > largest and level.number == 1:
            raise torch.OutOfMemoryError("out of memory")

    whole, found = gather(), gather(cramped)
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(whole, name), rtol=0, atol=0)
    assert progress[-1] == (21, 21)  # slices times levels
    largest = 0
    with pytest.raises(MethodError, match="not enough memory for a batch of 1"):
        gather(cramped)


def test_a_device_that_is_none_is_refused(made):
    for word in ("gpu", "meta", "cuda:77"):
        with pytest.raises(ConfigError, match=f"device {word}"):
            anofpdm.load(made / "model", word)


def test_one_class_alone_is_refused_before_the_network_is_asked(made):
    cohort = open_cohort(made / "cohort")
    healthy = replace(cohort, labels=np.full(len(cohort), HEALTHY))
    model = replace(load_trained(made / "model", CPU), predict=None)
    with pytest.raises(CalibrationError, match=r"need both classes.*--most.*--split"):
        fit_calibration(model, healthy, SMALL)


def test_the_foreground_is_of_whole_scans(made):
    model, cohort = load_trained(made / "model", CPU), open_cohort(made / "cohort")
    labels = cohort.labels.copy()
    labels[cohort.indices < 10] = NULL
    some = replace(cohort, labels=labels)
    whole = [foreground_share(cohort.pixels(np.flatnonzero(cohort.scans == scan))) for scan in np.unique(cohort.scans)]
    assert foreground_range(some, np.unique(cohort.scans)) == (min(whole), max(whole))
    low, high = fit_calibration(model, some, SMALL).calibration.foreground
    assert min(whole) <= low <= high <= max(whole)


def test_maps_beyond_half_precision_stay_numbers():
    pixels = np.zeros((1, 2, 8, 8), np.float32)
    found = evidence(Rounding(), pixels, 1)
    large = SignalMaps(torch.full_like(found.maps, 1e6), found.last_maps)
    kept = compact(replace(found, maps_by_signal={"error": large}))
    assert kept.maps.dtype == torch.float16
    assert kept.maps.isfinite().all()


def test_the_oldest_recording_makes_room(made, monkeypatch):
    from anofpdm.network import predictor

    class Played:
        def __init__(self, function, *_inputs_and_pool):
            self.function = function

        def __call__(self, *inputs):
            return self.function(*inputs)

    monkeypatch.setattr(predictor, "CudaGraph", Played)
    predict = NoisePredictor(load_trained(made / "model", CPU).predict.network, CPU)
    predict._uses_graphs = True
    for count in range(1, predictor.MAX_GRAPHS + 2):
        predict(torch.zeros(count, 2, 16, 16), 0, torch.zeros(count, dtype=torch.long))
    assert [shape[0] for shape in predict._graphs] == list(range(2, predictor.MAX_GRAPHS + 2))


def test_in_float32_products_are_not_rounded_and_the_users_setting_comes_back(made):
    network, seen = load_trained(made / "model", CPU).predict.network, []
    network.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        NoisePredictor(network, CPU)(torch.zeros(1, 2, 16, 16), 0, torch.zeros(1, dtype=torch.long))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]


def test_processes_that_are_done_wait_long_for_the_others(monkeypatch):
    from anofpdm.util import distributed as world

    asked = {}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda _backend, **options: asked.update(options))
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert world.World.from_environment(CPU) == world.World(1, 2)
    assert asked["timeout"].days == 7
