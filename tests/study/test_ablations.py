"""Ablations of an untrained network on small phantoms: numbers recomputed, network passes counted, figures drawn."""

import csv
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from anofpdm.calibration.fit_calibration import CalibrationConfig, fit_calibration, labelled_rows
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.errors import EvaluationError, MethodError
from anofpdm.labels import HEALTHY
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import EvidenceRequest, concatenate
from anofpdm.method.gather import evidence_batches, slice_seeds
from anofpdm.network.predictor import load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.scoring.metrics.pixels import average_precision
from anofpdm.study.ablations.evidence_passes import measured_slices
from anofpdm.study.ablations.levels import FACTORS, extend_levels
from anofpdm.study.ablations.run_ablations import AblationConfig, ablate
from anofpdm.study.comparison.methods import VARIANTS
from anofpdm.util.files import folder_lock
from tests import toys
from tests.method.worlds import literal_mask_above

CPU = torch.device("cpu")
BUMP = (9.0, 6.5)  # about where toy lesions lie in slices of 16 x 16
LEVELS, OTHERS, BATCH = 6, (2, 4), 16
CONFIG = AblationConfig(
    CalibrationConfig(
        signal="error", levels=LEVELS, strengths=(0.0, 2.0, 5.0), split="train", batch=BATCH, strength_by="cosine"
    ),
    levels_tried=(*OTHERS, LEVELS),
    gallery_levels=(90, 210, 590),
)
NAMES = [
    "mse_curves", "sam", "lesion_size", "strength", "end_step", "threshold", "levels", "variants", "detector",
    "gallery",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toys.untrained(tmp_path_factory.mktemp("made"))


class Counting:
    """A denoiser that blurs and responds where the phantoms have lesions, plus the network's output; counts calls."""

    def __init__(self, predict):
        self.predict, self.device, self.precision = predict, predict.device, predict.precision
        self.calls = []  # level, slices

    def __call__(self, x, t, labels):
        predicted = self.predict(x, t, labels)
        self.calls.append((t, len(x)))
        _, spread = NoiseSchedule.linear().signal_and_noise(t, x)
        blurred = torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        across, down = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        bump = torch.exp(-((across - BUMP[0]) ** 2 + (down - BUMP[1]) ** 2) / 8)
        healthy = (labels == HEALTHY)[:, None, None, None]
        return (x - blurred) / spread + 0.1 * predicted + healthy * bump * (1.5 if t < 350 else 0.2)


def opened(made):
    model = load_trained(made / "model", CPU)
    return replace(model, predict=Counting(model.predict))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(made):
    """All ablations once, the calls of the network, and the slices and evidence that the tables were made from."""
    model = opened(made)
    ablations = ablate(model, open_cohort(made / "cohort"), CONFIG)
    return ablations, model.predict.calls, ablations.study


def table(done, name):
    return next(ablation for ablation in done[0].tables if ablation.name == name)


def literal_masks(maps, quantiles):
    return np.stack([literal_mask_above(image, quantile) for image, quantile in zip(maps, quantiles, strict=True)])


def literal_dice(masks, lesions):
    pairs = zip(masks, lesions, strict=True)
    return float(np.mean([toys.dice(mask, lesion) if (mask | lesion).any() else 1.0 for mask, lesion in pairs]))


# ---- passes ----------------------------------------------------------------------------------------------------------


def test_number_of_network_evaluations(done):
    """Two evaluations per slice and level: for all slices once, once for each K and once for the other encoding; for
    slices with a lesion once more beyond the range and once for gradients."""
    _, calls, study = done
    n, n_unhealthy = len(study.rows), len(study.unhealthy)
    assert 0 < n_unhealthy < n
    levels = extend_levels(
        study.calibration.settings.levels, int(study.decisions.measured.end_step[study.unhealthy].max())
    )
    of_all, of_unhealthy = 2 * LEVELS + sum(OTHERS), len(levels) + LEVELS
    assert sum(slices for _, slices in calls) == 2 * (n * of_all + n_unhealthy * of_unhealthy)


def test_impossible_numbers_of_levels_are_refused_before_any_work(made):
    model = opened(made)
    with pytest.raises(MethodError, match="601 levels"):
        ablate(model, open_cohort(made / "cohort"), replace(CONFIG, levels_tried=(2, 601)))
    assert not model.predict.calls


# ---- the second pass, against all levels kept ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(made, done):
    """Of slices with a lesion at w*: the method's own evidence, the signal at every level, and streamed maps."""
    study = done[2]
    model, cohort, calibration = opened(made), study.cohort, study.calibration
    rows = study.rows[study.unhealthy]
    signals = []

    def record(_level, signal_map):
        signals.append(signal_map()[:, 0].clone())

    def run_levels(levels, on_level=None):
        settings = replace(calibration.settings, levels=levels)
        request = EvidenceRequest(settings, [calibration.strength], CPU, len(rows))
        seeds = slice_seeds(cohort.indices[rows], 0)
        batches = evidence_batches(
            model.predict, lambda some: cohort.pixels(rows[some]), seeds, request, on_level=on_level
        )
        return concatenate(list(batches))

    evidence = run_levels(calibration.settings.levels)
    run_levels(extend_levels(calibration.settings.levels, int(evidence.end_step.max())), record)
    return evidence, torch.stack(signals, 1)  # [U, K, H, W]


def test_dice_by_end_step(kept, done):
    evidence, signals = kept
    study = done[2]
    assert torch.equal(evidence.end_step[:, 0], torch.from_numpy(study.decisions.measured.end_step[study.unhealthy]))
    lesions, quantiles = study.lesions[study.unhealthy], study.decisions.measured.quantile[study.unhealthy]
    rows = {factor: score for factor, score, _ in table(done, "end_step").rows}
    assert list(rows) == list(FACTORS)
    levels = extend_levels(evidence.settings.levels, int(evidence.end_step.max()))
    assert len(levels) > LEVELS
    for factor in FACTORS:
        maps = [
            signals[row, [n for n, t in enumerate(levels) if t <= factor * end]].mean(0).numpy()
            for row, end in enumerate(evidence.end_step[:, 0].tolist())
        ]
        assert rows[factor] == pytest.approx(literal_dice(literal_masks(maps, quantiles), lesions), abs=1e-3)


def test_magnitudes_inside_and_outside(kept, done):
    _, signals = kept
    study = done[2]
    lesions = study.lesions[study.unhealthy]
    around = (study.cohort.pixels(study.rows[study.unhealthy]).mean(1) > -0.95) & ~lesions
    sam = table(done, "sam")
    for name, region in (("inside", lesions), ("outside", around)):
        literal = np.mean(
            [[image[part].mean() for image in images] for images, part in zip(signals.numpy(), region, strict=True)],
            axis=0,
        )
        np.testing.assert_allclose(sam.column(name), literal[:LEVELS], rtol=1e-3)
    np.testing.assert_allclose(sam.column("ratio"), np.divide(sam.column("inside"), sam.column("outside")), rtol=1e-5)


# ---- tables, recomputed ----------------------------------------------------------------------------------------------


def test_fixed_thresholds(done):
    study = done[2]
    strength = study.calibration.strength
    maps = study.gathered.evidence.at(strength).maps[study.unhealthy, 0].float().numpy()
    fixed = {row[1]: row[2] for row in table(done, "threshold").rows if row[0] == "fixed"}
    assert list(fixed) == [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98]
    for quantile, score in fixed.items():
        literal = literal_dice(literal_masks(maps, [quantile] * len(maps)), study.lesions[study.unhealthy])
        assert score == pytest.approx(literal, abs=1e-12)
    dynamic = literal_dice(
        literal_masks(maps, study.decisions.measured.quantile[study.unhealthy]), study.lesions[study.unhealthy]
    )
    assert table(done, "threshold").rows[0] == ("dynamic", "", pytest.approx(dynamic, abs=1e-12))


def test_levels_and_detectors(done):
    study = done[2]
    by_levels = {row[0]: row[1:] for row in table(done, "levels").rows}
    assert list(by_levels) == [*OTHERS, LEVELS]
    inside = study.cohort.pixels(study.rows[study.unhealthy]).mean(1) > -0.95
    ranked = average_precision(study.decisions.maps[study.unhealthy][inside], study.lesions[study.unhealthy][inside])
    assert by_levels[LEVELS] == pytest.approx((table(done, "threshold").rows[0][2], ranked))
    rows = {row[0]: row[1:] for row in table(done, "detector").rows}
    assert rows["all-empty"][2] == pytest.approx(1 - len(study.unhealthy) / len(study.rows))
    assert rows["none"][2] == pytest.approx(literal_dice(study.decisions.drawn, study.lesions))
    assert rows["cosine"][0] == study.calibration.cosine_accuracy.accuracy


def test_variants(done, made):
    """Two of them from the first pass, another from a separate calibration."""
    study = done[2]
    rows = {row[0]: row[1] for row in table(done, "variants").rows}
    assert list(rows) == [*VARIANTS]
    assert rows["anofpdm-ddim"] == pytest.approx(table(done, "threshold").rows[0][2], abs=1e-12)
    evidence = study.gathered.evidence.at(study.calibration.strength)
    quantiles, lesions = study.decisions.measured.quantile[study.unhealthy], study.lesions[study.unhealthy]
    last = literal_masks(evidence.last_maps[study.unhealthy, 0].float().numpy(), quantiles)
    assert rows["anofpdm-ddim-last"] == pytest.approx(literal_dice(last, lesions), abs=1e-12)
    options = replace(CONFIG.calibration, encoding="ddpm")
    calibration, gathered = fit_calibration(opened(made), study.cohort, options)
    masks = decide(gathered.evidence, calibration, DecisionSettings(detector="none")).drawn[study.unhealthy]
    assert rows["anofpdm-ddpm"] == pytest.approx(literal_dice(masks, lesions), abs=1e-12)
    assert len(set(rows.values())) > 4


# ---- figures, page and command ---------------------------------------------------------------------------------------


def test_the_command(made, tmp_path):
    out = tmp_path / "out"
    words = [
        "ablate", made / "model", made / "cohort", "--out", out, "--split", "train", "--levels", 3,
        "--levels-tried", "2", "--strengths", "0,2", "--most", 20, "--device", "cpu", "--score", "flair",
    ]  # fmt: skip

    def anofpdm(*more):
        return CliRunner().invoke(app, [*map(str, words), *more])

    out.mkdir()
    with folder_lock(out):
        assert "another run is writing here" in anofpdm().output
    for wrong in (("--levels-tried", "0"), ("--gallery-levels", "1.5")):
        assert anofpdm(*wrong).exit_code == 2
    ran = anofpdm()
    assert ran.exit_code == 0, ran.output
    assert f"report: {out / 'index.html'}" in ran.stdout
    page = (out / "index.html").read_text()
    assert "<script" not in page
    assert "http" not in re.sub('http-equiv|base64,[^"]+', "", page)
    for name in NAMES:
        assert f'<a href="{name}.png"><img src="data:image/png;base64,' in page.replace("\n", "")
        assert len(np.unique(np.asarray(Image.open(out / f"{name}.png")))) > 8
        header, *rows = csv.reader((out / f"{name}.csv").read_text().splitlines())
        assert rows
        assert {len(row) for row in rows} == {len(header)}
    payload = json.loads((out / "ablations.json").read_text())
    assert list(payload["ablations"]) == NAMES
    assert payload["settings"]["scored"] == ["flair"]
    assert payload["settings"]["options"]["levels_tried"] == [2]
    assert len(payload["settings"]["model_sha256"]) == 64


# ---- refused cohorts -------------------------------------------------------------------------------------------------


def test_a_cohort_without_masks_is_refused(made, tmp_path):
    shutil.copytree(made / "cohort", tmp_path / "cohort")
    shutil.rmtree(tmp_path / "cohort" / "truth")
    words = ["ablate", str(made / "model"), str(tmp_path / "cohort"), "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1
    assert "has no lesion masks" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_scans_without_masks_are_left_out(made):
    cohort = open_cohort(made / "cohort")
    rows = labelled_rows(cohort, "train", 2000, 0)
    without = cohort.scans == cohort.scans[rows[0]]
    measured, left, lesions = measured_slices(replace(cohort, has_mask=~without), CONFIG.calibration)
    assert set(rows) - set(left) == set(np.flatnonzero(without))
    assert len(left) == len(lesions)
    assert not set(measured.rows("train")) & set(np.flatnonzero(without))
    with pytest.raises(EvaluationError, match="no scan of the 'train' split has a lesion mask"):
        measured_slices(replace(cohort, has_mask=np.zeros_like(without)), CONFIG.calibration)
    with pytest.raises(EvaluationError, match="need both classes"):
        measured_slices(replace(cohort, labels=np.full(len(cohort), HEALTHY)), CONFIG.calibration)
