from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import median_filter
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from anofpdm.choices import Signal
from anofpdm.errors import CalibrationError, ConfigError
from anofpdm.method import NoiseSchedule, calibrate, forward_evidence
from anofpdm.method.calibration import Candidate, choose_strength
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import auc, best_cut, fit_curve, held_out_scores
from anofpdm.method.evidence import SignalMaps
from tests.method.worlds import Elementwise, made_up


@pytest.fixture(scope="module")
def made():
    return made_up()


@pytest.fixture(scope="module")
def calibrated(made):
    return calibrate(*made)


def every_cut(similarity, unhealthy):
    """All accuracies, slowly: the cut is any number."""
    ordered = np.sort(similarity)
    tried = [ordered[0] - 1, *((ordered[1:] + ordered[:-1]) / 2), *ordered]
    return max(float(((similarity <= cut) == unhealthy).mean()) for cut in tried)


class TestCut:
    @settings(max_examples=100)
    @given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=30))
    def test_no_cut_is_more_accurate_than_the_best_cut(self, slices):
        similarity = np.array([value / 7 for value, _ in slices])
        unhealthy = np.array([label for _, label in slices])
        cut, accuracy = best_cut(similarity, unhealthy)
        assert accuracy == pytest.approx(((similarity <= cut) == unhealthy).mean())
        assert accuracy == pytest.approx(every_cut(similarity, unhealthy))

    def test_of_equally_good_cuts_the_one_in_the_widest_gap(self):
        similarity = np.array([0.1, 0.2, 0.8, 0.9])
        # Cuts after 0.1 (gap 0.1) and after 0.2 (gap 0.6) are right in three of four.
        assert best_cut(similarity, np.array([True, False, False, True]))[0] == pytest.approx(0.15)
        assert best_cut(np.array([0.1, 0.2, 0.8]), np.array([True, True, False]))[0] == pytest.approx(0.5)

    def test_a_cut_lies_between_its_neighbours_however_close_they_are(self):
        low = np.float32(1 - 2**-24)
        cut, _ = best_cut(np.array([low, 1.0], dtype=np.float32), np.array([True, False]))
        assert low < cut < 1.0


class TestCurveDetector:
    @pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
    def test_it_is_scikit_learns_logistic_regression(self, strength):
        rng = np.random.default_rng(1)
        logs = rng.normal(size=(80, 6)) * [1, 2, 3, 1, 1, 5] + 4
        unhealthy = logs @ [0.5, -0.2, 0.1, 0, 1, 0] + rng.normal(size=80) > 4.5
        ours = fit_curve(logs, unhealthy, strength)
        standard = (logs - logs.mean(0)) / logs.std(0)
        theirs = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(standard, unhealthy)
        np.testing.assert_allclose(ours.weights, theirs.coef_[0], atol=1e-4)
        np.testing.assert_allclose(ours.scores(logs), theirs.decision_function(standard), atol=1e-3)

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
    def test_auc_is_scikit_learns(self, slices):
        scores, truth = np.array([s for s, _ in slices], float), np.array([t for _, t in slices])
        if truth.all() or not truth.any():
            assert np.isnan(auc(scores, truth))
        else:
            assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores))

    def test_held_out_scores_come_from_detectors_that_have_not_seen_the_patient(self):
        patients, folds = np.repeat([*"abcdefg"], [1, 9, 3, 3, 3, 2, 5]), []

        def fit(rows):
            folds.append(rows)
            return lambda held_out: np.isin(held_out, patients[rows]).astype(float)

        assert not held_out_scores(fit, patients, patients).any()
        assert sorted(len(patients) - len(rows) for rows in folds) == [3, 4, 5, 5, 9]  # of nearly equal sizes

    def test_shuffled_labels_do_not_look_better_than_chance_when_patients_are_held_out(self):
        """A strength chosen, and a detector fitted, on noise: cross-validation must see through it."""
        rng = np.random.default_rng(3)
        evidence, _, _ = made_up(200, lift=1.0)
        calibration = calibrate(evidence, rng.integers(0, 2, 200), rng.integers(0, 20, 200))
        assert calibration.fitted[0].curve_accuracy.accuracy < 0.62
        assert calibration.cosine_accuracy.accuracy < 0.62


def candidates(*accuracies):
    return [Candidate(float(w), accuracy, 0.0, 0.0, 0.0) for w, accuracy in enumerate(accuracies)]


class TestStrength:
    @pytest.mark.parametrize(
        ("accuracies", "ratio", "best", "chosen"),
        [
            ((0.5, 0.9, 0.895, 0.7), 0.98, 1, 2),
            ((0.9, 0.5, 0.89, 0.1), 0.98, 0, 2),  # a gap in between does not matter
            ((0.9, 0.9, 0.9), 0.98, 0, 2),
            ((0.8, 0.9), 0.98, 1, 1),
            ((0.9, 0.8, 0.79), 0.5, 0, 2),
            ((0.89, 0.9, 0.1), 0.98, 1, 1),  # never below the best
        ],
    )
    def test_the_largest_that_is_nearly_as_accurate(self, accuracies, ratio, best, chosen):
        assert [candidate.strength for candidate in choose_strength(candidates(*accuracies), ratio)] == [best, chosen]

    def test_by_maps_the_weakest_that_is_nearly_as_good(self):
        rated = [Candidate(w, 0.9, 0.0, 0.9, area) for w, area in ((1.0, 0.7), (3.0, 0.94), (5.0, 0.95), (8.0, 0.96))]
        best, chosen = choose_strength(rated, 0.98, "map")
        assert (best.strength, chosen.strength) == (8.0, 5.0)  # 0.98 * 0.96 = 0.9408
        assert choose_strength(rated, 1.0, "map")[1].strength == 8.0

    def test_by_maps_only_a_chosen_strength_at_the_edge_matters(self, calibrated):
        """AUC levels off; what matters is whether the chosen one is the largest."""
        rated = tuple(Candidate(w, 0.9, 0.0, 0.9, area) for w, area in ((1.0, 0.94), (3.0, 0.95)))
        weakest = replace(calibrated, candidates=rated, best_strength=3.0, strength=1.0)
        assert replace(weakest, strength_by="cosine").at_edge
        assert not replace(weakest, strength_by="map").at_edge
        assert replace(weakest, strength_by="map", strength=3.0).at_edge

    def test_by_maps_the_one_whose_maps_separate_the_classes(self, made):
        """At strength 2; at 5, healthy slices are bright as well."""
        evidence, labels, patients = made
        rng = np.random.default_rng(0)
        maps = rng.uniform(0, 0.1, (40, 3, 16, 16)).astype(np.float32)
        maps[labels == 1, 1, :4, :4] += 0.5
        maps[:, 2, :4, :4] += rng.uniform(0, 1, (40, 1, 1))
        evidence = replace(evidence, maps_by_signal={Signal.ERROR: SignalMaps(torch.tensor(maps), torch.tensor(maps))})
        by_map = calibrate(evidence, labels, patients, strength_by="map")
        assert (by_map.strength, by_map.best_strength, by_map.strength_by) == (2.0, 2.0, "map")
        # The smallest lesion has one pixel.
        wanted = [roc_auc_score(labels, maps[:, w].reshape(40, -1).max(axis=1)) for w in range(3)]
        assert [candidate.map_auc for candidate in by_map.candidates] == pytest.approx(wanted)
        with pytest.raises(ConfigError, match="cosine, map"):
            calibrate(*made, strength_by="mask")


def test_separable_slices_are_separated():
    evidence, labels, patients = made_up(80, lift=30.0)
    calibration = calibrate(evidence, labels, patients)
    assert calibration.fitted[0].curve_accuracy.accuracy > 0.95
    assert calibration.n_healthy == calibration.n_unhealthy == 40
    assert calibration.n_patients == 20
    column = evidence.strengths.index(calibration.strength)
    assert calibration.divergence_max == pytest.approx(float(evidence.divergence[:, column].max()))


def test_the_cosine_is_computed_in_float64(made):
    evidence, labels, patients = made
    single = evidence.map(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    assert single.similarity.dtype == torch.float64
    calibration = calibrate(single, labels, patients)
    similarity = single.at(calibration.strength).similarity[:, 0].numpy()
    (accuracy,) = (rated.accuracy for rated in calibration.candidates if rated.strength == calibration.strength)
    assert ((similarity <= calibration.cut) == (labels == 1)).mean() == pytest.approx(accuracy)


def test_the_healthy_threshold_is_a_percentile_of_filtered_healthy_maps(made, calibrated):
    evidence, labels, _ = made
    maps = evidence.at(calibrated.strength).maps[:, 0].float().numpy()[labels == 0]
    expected = np.percentile([median_filter(image, 5, mode="reflect") for image in maps], 99.8)
    assert calibrated.fitted[0].healthy_threshold == pytest.approx(expected, rel=1e-6)


def test_order_of_slices_changes_nothing(made, calibrated):
    evidence, labels, patients = made
    order = np.random.default_rng(0).permutation(len(labels))
    shuffled = calibrate(evidence.map(lambda tensor: tensor[order]), labels[order], patients[order])
    for name in ("strength", "cut", "divergence_max"):
        assert getattr(shuffled, name) == getattr(calibrated, name)


@pytest.mark.parametrize(
    ("labels", "match"),
    [([0] * 40, "both classes"), ([1] * 40, "both classes"), ([0, 1], "one each"), ([0, 2] * 20, "labelled")],
)
def test_labels_that_do_not_suffice(made, labels, match):
    with pytest.raises(CalibrationError, match=match):
        calibrate(made[0], labels, made[2])


def test_a_model_that_ignores_its_labels_is_refused():
    evidence = forward_evidence(
        Elementwise(difference=0.0), torch.rand(4, 1, 8, 8), levels=[0, 50], strengths=[1.0, 2.0],
        schedule=NoiseSchedule.linear(), seeds=range(4),
    )  # fmt: skip
    with pytest.raises(CalibrationError, match="train it longer"):
        calibrate(evidence, [0, 1, 0, 1], list("aabb"))


def test_smoothing_is_a_gaussian_in_millimetres_within_each_scan():
    positions = SlicePositions(np.array([0, 0, 0, 1]), np.array([0.0, 2.0, 10.0, 2.0]))
    values = np.array([1.0, 3.0, 7.0, 100.0])
    w = np.exp(-(2.0**2) / (2 * 2.0**2))
    expected = [(1 + w * 3) / (1 + w), (3 + w * 1) / (1 + w), 7.0, 100.0]  # 10 mm is beyond three sigmas
    np.testing.assert_allclose(smooth_across_slices(values, positions, 2.0), expected, rtol=1e-6)
    assert smooth_across_slices(values, positions, 0.0) is values
    maps = np.tile(values[:, None, None], (1, 2, 3))
    np.testing.assert_allclose(smooth_across_slices(maps, positions, 2.0)[:, 1, 2], expected, rtol=1e-6)
