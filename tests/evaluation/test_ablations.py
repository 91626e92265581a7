"""Ablations of an untrained network on small heads: numbers recomputed by hand, passes counted, pictures looked at."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage, stats
from typer.testing import CliRunner

from anofpdm.calibration.fit import CalibrationConfig, fit_calibration, labelled_rows
from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.errors import CohortError, EvaluationError, MethodError
from anofpdm.evaluation.ablations import levels as ablations_levels
from anofpdm.evaluation.ablations import tables as ablations_tables
from anofpdm.evaluation.ablations.figures import FIGURES, gallery, numbers, page
from anofpdm.evaluation.ablations.levels import FACTORS, EndStepMaps, climbed_on
from anofpdm.evaluation.ablations.run import Options, ablate, measured_slices
from anofpdm.evaluation.metrics.pixels import average_precision
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import concatenate
from anofpdm.method.many_slices import EvidenceRequest, evidence_batches, slice_seeds
from anofpdm.method.variants import VARIANTS
from anofpdm.network.predictor import load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.util.drawing import Line, chart
from anofpdm.util.files import folder_lock
from tests import toys

CPU = torch.device("cpu")
BUMP = (9.0, 6.5)  # about where toy lesions lie in slices of 16 x 16
LEVELS, OTHERS, BATCH = 6, (2, 4), 16
OPTIONS = Options(
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
    """A denoiser that blurs and sees lesions where the heads have theirs, disturbed by the network; and its count."""

    def __init__(self, predict):
        self.predict, self.device, self.precision = predict, predict.device, predict.precision
        self.asked = []  # level, slices

    def __call__(self, x, t, labels):
        self.asked.append((t, len(x)))
        _, spread = NoiseSchedule.linear().signal_and_noise(t, x)
        blurred = torch.nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        across, down = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
        bump = torch.exp(-((across - BUMP[0]) ** 2 + (down - BUMP[1]) ** 2) / 8)
        healthy = (labels == HEALTHY)[:, None, None, None]
        return (x - blurred) / spread + 0.1 * self.predict(x, t, labels) + healthy * bump * (1.5 if t < 350 else 0.2)


def opened(made):
    model = load_trained(made / "model", CPU)
    return replace(model, predict=Counting(model.predict))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def done(made):
    """All ablations once, what was asked of the network, how far the bar went, and what the tables were made of."""
    model, heard, bar, kept = opened(made), {}, [], {}
    with pytest.MonkeyPatch.context() as patch:

        def spied(study):
            kept["study"] = study
            return ablations_tables.mse_curves(study)

        def second(*args, **options):
            heard["heard"] = ablations_levels.second_pass(*args, **options)
            return heard["heard"]

        patch.setattr("anofpdm.evaluation.ablations.run.mse_curves", spied)
        patch.setattr("anofpdm.evaluation.ablations.run.second_pass", second)
        found = ablate(model, open_cohort(made / "cohort"), OPTIONS, lambda *now: bar.append(now))
    return found, model.predict.asked, bar, kept["study"], heard["heard"]


def table(done, name):
    return next(one for one in done[0].tables if one.name == name)


def literal_masks(maps, quantiles):
    drawn = []
    for image, quantile in zip(maps, quantiles, strict=True):
        above = ndimage.median_filter(image, size=5, mode="reflect") >= np.quantile(image, quantile)
        components, count = ndimage.label(above, np.ones((3, 3)))
        for number in range(1, count + 1):
            if (components == number).sum() <= round(40 * 16 * 16 / 128**2):
                above[components == number] = False
        drawn.append(above)
    return np.stack(drawn)


def literal_dice(drawn, lesions):
    return float(np.mean([toys.dice(one, other) for one, other in zip(drawn, lesions, strict=True)]))


# ---- passes ----------------------------------------------------------------------------------------------------------


def test_the_network_is_asked_no_more_than_the_specification_allows(done):
    """Two questions a slice and level: once for all, for each K and for the other encoding; where there are lesions,
    once further up and once for gradients."""
    _, asked, _, study, _ = done
    n, n_ill = len(study.rows), len(study.ill)
    assert 0 < n_ill < n
    climbed = climbed_on(study.calibrated.calibration.settings.levels, int(study.decisions.end_step[study.ill].max()))
    of_all, of_ill = 2 * LEVELS + sum(OTHERS), len(climbed) + LEVELS
    assert sum(slices for _, slices in asked) == 2 * (n * of_all + n_ill * of_ill)


def test_the_second_pass_climbs_as_far_as_three_end_steps():
    assert climbed_on((0, 100, 200), 100) == (0, 100, 200, 300)
    assert climbed_on((0, 100, 200), 10) == (0, 100, 200)
    assert climbed_on((0, 100, 200), 200)[-1] == 600
    assert climbed_on((0, 100, 200), 900)[-1] == 900


def test_the_bar_covers_all_passes(done):
    _, _, bar, _, _ = done
    steps, totals = zip(*bar, strict=True)
    assert list(steps) == sorted(steps)
    assert steps[-1] == totals[0]
    assert set(totals) == {totals[0]}


def test_numbers_of_levels_that_cannot_be_are_refused_before_any_work(made):
    model = opened(made)
    with pytest.raises(MethodError, match="601 levels"):
        ablate(model, open_cohort(made / "cohort"), replace(OPTIONS, levels_tried=(2, 601)))
    assert not model.predict.asked


# ---- the second pass, against all levels kept ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(made, done):
    """Of slices with a lesion at w*: the method's own evidence, the signal at every level, and streamed maps."""
    study = done[3]
    model, cohort, calibration = opened(made), study.cohort, study.calibrated.calibration
    rows = study.rows[study.ill]
    signals, answers = [], []

    def listen(level, signal_map):
        signals.append(signal_map()[:, 0].clone())
        answers.append((level.healthy - level.unguided).square().mean(1))

    def climb(levels, on_level=None):
        settings = replace(calibration.settings, levels=levels)
        request = EvidenceRequest(settings, [calibration.strength], CPU, len(rows))
        seeds = slice_seeds(cohort.indices[rows], 0)
        batches = evidence_batches(
            model.predict, lambda some: cohort.pixels(rows[some]), seeds, request, on_level=on_level
        )
        return concatenate(list(batches))

    evidence = climb(calibration.settings.levels)
    climb(climbed_on(calibration.settings.levels, int(evidence.end_step.max())), listen)
    return evidence, torch.stack(signals, 1), torch.stack(answers, 1)  # [U, K, H, W]


def test_the_streamed_map_at_factor_1_is_the_methods_own(kept):
    evidence, signals, _ = kept
    levels, end_step = evidence.settings.levels, evidence.end_step[:, 0]
    streamed = EndStepMaps(end_step, FACTORS, signals[:, 0])
    for number, t in enumerate(levels):
        streamed.add(t, signals[:, number])
    assert torch.equal(streamed.maps[:, FACTORS.index(1.0)], evidence.maps[:, 0])
    for column, factor in enumerate(FACTORS):
        for row, end in enumerate(end_step.tolist()):
            among = [number for number, t in enumerate(levels) if t <= max(factor * end, levels[0])]
            torch.testing.assert_close(streamed.maps[row, column], signals[row, among].mean(0))


def test_dice_by_end_step(kept, done):
    evidence, signals, _ = kept
    _, _, _, study, heard = done
    assert torch.equal(evidence.end_step[:, 0], torch.from_numpy(study.decisions.end_step[study.ill]))
    lesions, quantiles = study.lesions[study.ill], study.decisions.quantile[study.ill]
    rows = {factor: score for factor, score, _ in table(done, "end_step").rows}
    assert list(rows) == list(FACTORS)
    climbed = climbed_on(evidence.settings.levels, int(evidence.end_step.max()))
    assert len(climbed) > LEVELS
    for factor in FACTORS:
        maps = [
            signals[row, [n for n, t in enumerate(climbed) if t <= factor * end]].mean(0).numpy()
            for row, end in enumerate(evidence.end_step[:, 0].tolist())
        ]
        assert rows[factor] == pytest.approx(literal_dice(literal_masks(maps, quantiles), lesions), abs=1e-3)
    assert heard.dice.shape == (len(study.ill), len(FACTORS))


def test_factor_1_scores_as_the_dynamic_threshold_does(done):
    by_name = {row[0]: row[2] for row in table(done, "threshold").rows if row[0] != "fixed"}
    scores = {factor: score for factor, score, _ in table(done, "end_step").rows}
    assert scores[1.0] == pytest.approx(by_name["dynamic"], abs=0.02)  # kept in half


def test_magnitudes_inside_and_outside(kept, done):
    _, signals, _ = kept
    study = done[3]
    lesions = study.lesions[study.ill]
    around = (study.cohort.pixels(study.rows[study.ill]).mean(1) > -0.95) & ~lesions
    sam = table(done, "sam")
    for name, region in (("inside", lesions), ("outside", around)):
        literal = np.mean(
            [[image[part].mean() for image in images] for images, part in zip(signals.numpy(), region, strict=True)],
            axis=0,
        )
        np.testing.assert_allclose(sam.column(name), literal[:LEVELS], rtol=1e-3)
    np.testing.assert_allclose(sam.column("ratio"), np.divide(sam.column("inside"), sam.column("outside")), rtol=1e-5)


def test_gallery_tiles_are_the_levels_asked_for(kept, done):
    evidence, signals, answers = kept
    shown, study = done[0].gallery, done[3]
    assert shown.levels == (100, 200, 500)  # the nearest that the climb visits
    columns = [evidence.settings.levels.index(level) for level in shown.levels]
    for number, (scan, index, size, end) in enumerate(table(done, "gallery").rows):
        rows = study.rows[study.ill]
        (row,) = np.flatnonzero((study.cohort.scans[rows] == scan) & (study.cohort.indices[rows] == index))
        wanted = [*columns, evidence.settings.levels.index(end)]
        np.testing.assert_allclose(shown.tiles[number, 0], signals[row, wanted], rtol=1e-2, atol=1e-4)
        np.testing.assert_allclose(shown.tiles[number, 1], answers[row, wanted], rtol=1e-2, atol=1e-4)
        assert size == shown.lesions[number].sum() > 0


# ---- tables, recomputed ----------------------------------------------------------------------------------------------


def test_masks_and_lesions_overlap_in_part(done):
    """Else the numbers below would agree by being nothing."""
    scores = [row[-1] for row in table(done, "threshold").rows]
    by_end_step = [row[1] for row in table(done, "end_step").rows]
    assert 0.05 < scores[0] < 1
    assert len(set(scores)) > 5
    assert len(set(by_end_step)) > 5


def test_fixed_thresholds(done):
    study = done[3]
    strength = study.calibrated.calibration.strength
    maps = study.calibrated.evidence.at(strength).maps[study.ill, 0].float().numpy()
    fixed = {row[1]: row[2] for row in table(done, "threshold").rows if row[0] == "fixed"}
    assert list(fixed) == [0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98]
    for quantile, score in fixed.items():
        literal = literal_dice(literal_masks(maps, [quantile] * len(maps)), study.lesions[study.ill])
        assert score == pytest.approx(literal, abs=1e-12)
    dynamic = literal_dice(literal_masks(maps, study.decisions.quantile[study.ill]), study.lesions[study.ill])
    assert table(done, "threshold").rows[0] == ("dynamic", "", pytest.approx(dynamic, abs=1e-12))


def test_lesion_size(done, made):
    one = table(done, "lesion_size")
    r = stats.pearsonr(one.column("pixels"), one.column("divergence")).statistic
    assert one.numbers["pearson_r"] == pytest.approx(r, abs=1e-9)
    cohort = open_cohort(made / "cohort")
    areas = {(str(s), int(i)): int(a) for s, i, a in zip(
        cohort.scans, cohort.indices, Truth(cohort).masks(np.arange(len(cohort))).sum((1, 2)), strict=True
    )}  # fmt: skip
    assert all(areas[scan, index] == pixels > 0 for scan, index, pixels, _ in one.rows)


def test_strengths(done):
    one, calibration = table(done, "strength"), done[3].calibrated.calibration
    assert one.column("accuracy") == [candidate.accuracy for candidate in calibration.candidates]
    at_chosen = next(row[3] for row in one.rows if row[0] == calibration.strength)
    assert at_chosen == pytest.approx(table(done, "threshold").rows[0][2], abs=1e-12)
    assert one.numbers == {"best_strength": calibration.best_strength, "strength": calibration.strength}


def test_levels_and_detectors(done):
    study = done[3]
    by_levels = {row[0]: row[1:] for row in table(done, "levels").rows}
    assert list(by_levels) == [*OTHERS, LEVELS]
    inside = study.cohort.pixels(study.rows[study.ill]).mean(1) > -0.95
    ranked = average_precision(study.decisions.maps[study.ill][inside], study.lesions[study.ill][inside])
    assert by_levels[LEVELS] == pytest.approx((table(done, "threshold").rows[0][2], ranked))
    rows = {row[0]: row[1:] for row in table(done, "detector").rows}
    assert rows["all-empty"][2] == pytest.approx(1 - len(study.ill) / len(study.rows))
    scores = [
        toys.dice(one, lesion) if one.any() or lesion.any() else 1.0
        for one, lesion in zip(study.decisions.drawn, study.lesions, strict=True)
    ]
    assert rows["none"][2] == pytest.approx(np.mean(scores))
    assert rows["cosine"][0] == study.calibrated.calibration.cosine_accuracy.accuracy


def test_variants(done, made):
    """Two of them from the first pass, another by an evaluation of its own."""
    study = done[3]
    rows = {row[0]: row[1] for row in table(done, "variants").rows}
    assert list(rows) == [*VARIANTS, "gradient-above"]
    assert rows["anofpdm-ddim"] == pytest.approx(table(done, "threshold").rows[0][2], abs=1e-12)
    evidence = study.calibrated.evidence.at(study.calibrated.calibration.strength)
    quantiles, lesions = study.decisions.quantile[study.ill], study.lesions[study.ill]
    last = literal_masks(evidence.last_maps[study.ill, 0].float().numpy(), quantiles)
    assert rows["anofpdm-ddim-last"] == pytest.approx(literal_dice(last, lesions), abs=1e-12)
    options = replace(OPTIONS.calibration, encoding="ddpm")
    again = fit_calibration(opened(made), study.cohort, options)
    drawn = decide(again.evidence, again.calibration, DecisionSettings(detector="none")).drawn[study.ill]
    assert rows["anofpdm-ddpm"] == pytest.approx(literal_dice(drawn, lesions), abs=1e-12)
    assert len(set(rows.values())) > 4


def test_curves(done):
    study = done[3]
    evidence = study.calibrated.evidence.at(study.calibrated.calibration.strength)
    unhealthy = study.cohort.labels[study.rows] == UNHEALTHY
    one = table(done, "mse_curves")
    guided, unguided = evidence.mse_guided[unhealthy, 0].mean(0), evidence.mse_unguided[~unhealthy].mean(0)
    np.testing.assert_allclose(one.column("unhealthy_guided_mean"), guided, rtol=1e-5)
    np.testing.assert_allclose(one.column("healthy_unguided_mean"), unguided, rtol=1e-5)


# ---- figures, page and command ---------------------------------------------------------------------------------------


def not_blank(picture):
    return len(picture.getcolors(1 << 24)) > 8


def test_a_word_at_the_right_edge_of_a_chart_is_whole():
    bare, drawn = (np.asarray(chart([Line([0, 1], [0, 0])], "", vlines=[(1, word)])) for word in ("", "a long word"))
    assert drawn.sum(dtype=int) > bare.sum(dtype=int)
    assert (drawn == bare)[:, -11:].all()  # right of the line


def test_figures(done):
    found = done[0]
    assert [one.name for one in found.tables] == NAMES == [*FIGURES, "gallery"]
    for one in found.tables[:-1]:
        assert not_blank(FIGURES[one.name](one)), one.name
    assert not_blank(gallery(found.gallery))


def test_the_page_and_the_numbers(done):
    said = json.loads(numbers(done[0]))  # strict: no NaN
    assert list(said["ablations"]) == NAMES
    assert said["settings"]["options"]["levels_tried"] == [2, 4, 6]
    assert len(said["settings"]["model_sha256"]) == 64
    text = page(done[0])
    assert "<script" not in text
    assert "http" not in text
    for name in NAMES:
        assert f'src="{name}.png"' in text


def test_the_command(made, tmp_path):
    words = [
        "ablate", made / "model", made / "cohort", "--out", tmp_path / "out", "--split", "train", "--levels", 3,
        "--levels-tried", "2", "--strengths", "0,2", "--most", 20, "--device", "cpu", "--score", "flair",
    ]  # fmt: skip
    (tmp_path / "out").mkdir()
    with folder_lock(tmp_path / "out"):
        refused = CliRunner().invoke(app, [str(word) for word in words])
    assert "another run is writing here" in refused.output
    ran = CliRunner().invoke(app, [str(word) for word in words])
    assert ran.exit_code == 0, ran.output
    assert "look at" in ran.stdout
    for name in NAMES:
        assert not_blank(Image.open(tmp_path / "out" / f"{name}.png"))
        header, *rows = csv.reader((tmp_path / "out" / f"{name}.csv").read_text().splitlines())
        assert rows
        assert {len(row) for row in rows} == {len(header)}
    assert json.loads((tmp_path / "out" / "ablations.json").read_text())["settings"]["scored"] == ["flair"]
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize("wrong", [("--levels-tried", "0"), ("--levels-tried", "a"), ("--gallery-levels", "1.5")])
def test_wrong_words_are_usage_errors(made, tmp_path, wrong):
    words = ["ablate", str(made / "model"), str(made / "cohort"), "--out", str(tmp_path / "out"), *wrong]
    assert CliRunner().invoke(app, words).exit_code == 2
    assert not (tmp_path / "out").exists()


# ---- what cannot be measured -----------------------------------------------------------------------------------------


def test_a_cohort_without_masks_is_refused(made, tmp_path):
    shutil.copytree(made / "cohort", tmp_path / "cohort")
    shutil.rmtree(tmp_path / "cohort" / "truth")
    with pytest.raises(CohortError, match="has no lesion masks"):
        measured_slices(open_cohort(tmp_path / "cohort"), OPTIONS.calibration)
    words = ["ablate", str(made / "model"), str(tmp_path / "cohort"), "--out", str(tmp_path / "out")]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1
    assert "has no lesion masks" in ran.stderr
    assert not (tmp_path / "out").exists()


def test_scans_without_masks_are_left_out(made):
    cohort = open_cohort(made / "cohort")
    rows = labelled_rows(cohort, "train", 2000, 0)
    without = cohort.scans == cohort.scans[rows[0]]
    measured, left, lesions = measured_slices(replace(cohort, has_mask=~without), OPTIONS.calibration)
    assert set(rows) - set(left) == set(np.flatnonzero(without))
    assert len(left) == len(lesions)
    assert not set(measured.rows("train")) & set(np.flatnonzero(without))
    with pytest.raises(EvaluationError, match="no scan of its 'train' split has a lesion mask"):
        measured_slices(replace(cohort, has_mask=np.zeros_like(without)), OPTIONS.calibration)


def test_one_class_is_refused(made):
    cohort = open_cohort(made / "cohort")
    healthy = replace(cohort, labels=np.full(len(cohort), HEALTHY))
    with pytest.raises(EvaluationError, match="need both classes"):
        measured_slices(healthy, OPTIONS.calibration)
