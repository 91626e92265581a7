"""Ablations of an untrained network on small phantoms: numbers recomputed, network passes counted, figures drawn."""

import csv
import json
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from anofpdm.calibration.fit_calibration import CalibrationConfig, fit_calibration, labelled_rows
from anofpdm.cohorts import open_cohort
from anofpdm.errors import EvaluationError, MethodError
from anofpdm.labels import HEALTHY
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import EvidenceRequest
from anofpdm.method.gather import evidence_batches, slice_seeds
from anofpdm.network.predictor import load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.ablations.ablation_report import write_report
from anofpdm.study.ablations.evidence_passes import measured_slices
from anofpdm.study.ablations.levels import FACTORS, extend_levels
from anofpdm.study.ablations.run_ablations import AblationConfig, ablate
from anofpdm.study.comparison.methods import VARIANTS
from anofpdm.study.comparison.rankings import average_precision
from tests import toys
from tests.commands import run
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
    model = load_trained(made / "guided", CPU)
    return replace(model, predict=Counting(model.predict))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(made):
    """All ablations once, the calls of the network, and what the tables were made from, of slices with a lesion."""
    model = opened(made)
    ablations = ablate(model, open_cohort(made / "cohort"), CONFIG)
    study, some = ablations.study, ablations.study.unhealthy
    calibration, measured = study.calibration, study.decisions.measured
    return SimpleNamespace(
        ablations=ablations,
        tables={table.name: table for table in ablations.tables},
        calls=model.predict.calls,
        study=study,
        calibration=calibration,
        evidence=study.gathered.evidence.at(calibration.strength)[torch.from_numpy(some)],
        lesions=study.lesions[some],
        foreground=study.cohort.pixels(study.rows[some]).mean(1) > -0.95,
        quantiles=measured.quantile[some],
        end_steps=measured.end_step[some],
        levels=extend_levels(calibration.settings.levels, int(measured.end_step[some].max())),  # of the second pass
    )


def literal_masks(maps, quantiles):
    return np.stack([literal_mask_above(image, quantile) for image, quantile in zip(maps, quantiles, strict=True)])


def literal_dice(masks, lesions):
    pairs = zip(masks, lesions, strict=True)
    return float(np.mean([toys.dice(mask, lesion) if (mask | lesion).any() else 1.0 for mask, lesion in pairs]))


# ---- passes ----------------------------------------------------------------------------------------------------------


def test_number_of_network_evaluations(done):
    """Two evaluations per slice and level: for all slices once, once for each K and once for the other encoding; for
    slices with a lesion once more beyond the range and once for gradients."""
    n, n_unhealthy = len(done.study.rows), len(done.lesions)
    assert 0 < n_unhealthy < n
    of_all, of_unhealthy = 2 * LEVELS + sum(OTHERS), len(done.levels) + LEVELS
    assert sum(slices for _, slices in done.calls) == 2 * (n * of_all + n_unhealthy * of_unhealthy)


def test_impossible_numbers_of_levels_are_refused_before_any_work(made):
    model = opened(made)
    with pytest.raises(MethodError, match="601 levels"):
        ablate(model, open_cohort(made / "cohort"), replace(CONFIG, levels_tried=(2, 601)))
    assert not model.predict.calls


# ---- the second pass, against all levels kept ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def signals(made, done):
    """[U, K, H, W]: of slices with a lesion at w*, at every level of the second pass."""
    cohort, rows, kept = done.study.cohort, done.study.rows[done.study.unhealthy], []
    settings = replace(done.calibration.settings, levels=done.levels)
    request = EvidenceRequest(settings, [done.calibration.strength], CPU, len(rows))
    seeds = slice_seeds(cohort.indices[rows], 0)

    def record(_level, signal_map):
        kept.append(signal_map()[:, 0].clone())

    predict = opened(made).predict
    list(evidence_batches(predict, lambda some: cohort.pixels(rows[some]), seeds, request, on_level=record))
    return torch.stack(kept, 1)


def test_dice_by_end_step(signals, done):
    assert len(done.levels) > LEVELS
    rows = {factor: score for factor, score, _ in done.tables["end_step"].rows}
    assert list(rows) == list(FACTORS)
    for factor in FACTORS:
        maps = [
            signals[row, [n for n, t in enumerate(done.levels) if t <= factor * end]].mean(0).numpy()
            for row, end in enumerate(done.end_steps)
        ]
        expected = literal_dice(literal_masks(maps, done.quantiles), done.lesions)
        assert rows[factor] == pytest.approx(expected, abs=1e-3)


def test_magnitudes_inside_and_outside(signals, done):
    sam = done.tables["sam"]
    for name, region in (("inside", done.lesions), ("outside", done.foreground & ~done.lesions)):
        literal = [
            [image[part].mean() for image in images] for images, part in zip(signals.numpy(), region, strict=True)
        ]
        np.testing.assert_allclose(sam.column(name), np.mean(literal, axis=0)[:LEVELS], rtol=1e-3)
    np.testing.assert_allclose(sam.column("ratio"), np.divide(sam.column("inside"), sam.column("outside")), rtol=1e-5)


# ---- tables, recomputed ----------------------------------------------------------------------------------------------


def test_thresholds(done):
    (_, _, dynamic), *rows = done.tables["threshold"].rows
    fixed = {quantile: score for name, quantile, score in rows if name == "fixed"}
    assert list(fixed) == [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98]
    maps = done.evidence.maps[:, 0].float().numpy()
    for quantiles, score in [(done.quantiles, dynamic), *(([at] * len(maps), score) for at, score in fixed.items())]:
        assert score == pytest.approx(literal_dice(literal_masks(maps, quantiles), done.lesions), abs=1e-12)


def test_levels_and_detectors(done):
    study, unhealthy = done.study, done.study.unhealthy
    by_levels = {row[0]: row[1:] for row in done.tables["levels"].rows}
    assert list(by_levels) == [*OTHERS, LEVELS]
    ranked = average_precision(study.decisions.maps[unhealthy][done.foreground], done.lesions[done.foreground])
    assert by_levels[LEVELS] == pytest.approx((done.tables["threshold"].rows[0][2], ranked))
    rows = {row[0]: row[1:] for row in done.tables["detector"].rows}
    assert rows["all-empty"][2] == pytest.approx(1 - len(unhealthy) / len(study.rows))
    assert rows["none"][2] == pytest.approx(literal_dice(study.decisions.drawn, study.lesions))
    assert rows["cosine"][0] == done.calibration.cosine_accuracy.accuracy


def test_variants(done, made):
    """Two of them from the first pass, another from a separate calibration."""
    rows = {row[0]: row[1] for row in done.tables["variants"].rows}
    assert list(rows) == [*VARIANTS]
    assert rows["anofpdm-ddim"] == pytest.approx(done.tables["threshold"].rows[0][2], abs=1e-12)
    last = literal_masks(done.evidence.last_maps[:, 0].float().numpy(), done.quantiles)
    assert rows["anofpdm-ddim-last"] == pytest.approx(literal_dice(last, done.lesions), abs=1e-12)
    options = replace(CONFIG.calibration, encoding="ddpm")
    calibration, gathered = fit_calibration(opened(made), done.study.cohort, options)
    masks = decide(gathered.evidence, calibration, DecisionSettings(detector="none")).drawn[done.study.unhealthy]
    assert rows["anofpdm-ddpm"] == pytest.approx(literal_dice(masks, done.lesions), abs=1e-12)
    assert len(set(rows.values())) > 4


# ---- figures, page and command ---------------------------------------------------------------------------------------


def test_the_report(done, tmp_path):
    write_report(done.ablations, tmp_path)
    page = (tmp_path / "index.html").read_text()
    assert "<script" not in page
    assert "http" not in re.sub('http-equiv|base64,[^"]+', "", page)
    for name in NAMES:
        assert f'<a href="{name}.png"><img src="data:image/png;base64,' in page.replace("\n", "")
        assert len(np.unique(np.asarray(Image.open(tmp_path / f"{name}.png")))) > 8
        header, *rows = csv.reader((tmp_path / f"{name}.csv").read_text().splitlines())
        assert rows
        assert {len(row) for row in rows} == {len(header)}
    payload = json.loads((tmp_path / "ablations.json").read_text())
    assert list(payload["ablations"]) == NAMES
    assert payload["settings"]["scored"] == ["flair", "t2"]
    assert payload["settings"]["options"]["levels_tried"] == [*OTHERS, LEVELS]
    assert len(payload["settings"]["model_sha256"]) == 64


@pytest.mark.parametrize("wrong", [("--levels-tried", "0"), ("--gallery-levels", "1.5")])
def test_wrong_options(made, tmp_path, wrong):
    run("ablate", made / "guided", made / "cohort", "--out", tmp_path / "out", *wrong, code=2)


# ---- refused cohorts -------------------------------------------------------------------------------------------------


def test_a_cohort_without_masks_is_refused(made, tmp_path):
    shutil.copytree(made / "cohort", tmp_path / "cohort")
    shutil.rmtree(tmp_path / "cohort" / "truth")
    refused = run("ablate", made / "guided", tmp_path / "cohort", "--out", tmp_path / "out", code=1)
    assert "has no lesion masks" in refused.stderr
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
