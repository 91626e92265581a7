import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter, median_filter
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from anofpdm.calibration.calibration_file import from_json, to_json
from anofpdm.errors import CalibrationError, ConfigError
from anofpdm.method import NoiseSchedule, calibrate, forward_evidence
from anofpdm.method.calibration import Candidate, choose_strength
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import auc, best_cut, choose_fit_strength, fit_curve, held_out_scores, patient_folds
from anofpdm.method.evidence import Evidence, EvidenceSettings, SignalMaps
from anofpdm.options import Signal
from tests.method.worlds import Elementwise

LEVELS = (0, 100, 200, 300)


def made_up(n=40, strengths=(0.0, 2.0, 5.0), seed=0, lift=2.0):
    """Evidence in which unhealthy slices (every second) diverge more; and labels, and patients of four slices each."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    shape = (n, len(strengths), len(LEVELS))
    divergence = rng.lognormal(-6, 0.5, shape) * np.where(labels, lift, 1.0)[:, None, None]
    unguided = rng.lognormal(-4, 0.1, (n, len(LEVELS))) * np.arange(1, 5)
    guided = unguided[:, None] + divergence * rng.uniform(0.5, 1.5, shape)
    evidence = Evidence(
        EvidenceSettings(LEVELS, (0,)),
        strengths,
        torch.tensor(divergence),
        torch.tensor(guided),
        torch.tensor(unguided),
        torch.tensor(np.array(LEVELS)[divergence.argmax(-1)]),
        {
            Signal.ERROR: SignalMaps(
                torch.tensor(gaussian_filter(rng.random((n, len(strengths), 16, 16)), (0, 0, 2, 2))),
                torch.zeros(n, len(strengths), 16, 16),
            )
        },
    )
    return evidence, labels, np.array([f"p{i // 4}" for i in range(n)])


def every_cut(similarity, unhealthy):
    """All accuracies, slowly: the cut is any number."""
    ordered = np.sort(similarity)
    tried = [ordered[0] - 1, *((ordered[1:] + ordered[:-1]) / 2), *ordered]
    return max(float(((similarity <= cut) == unhealthy).mean()) for cut in tried)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=30))
def test_no_cut_is_more_accurate_than_the_best_cut(slices):
    similarity = np.array([value / 7 for value, _ in slices])
    unhealthy = np.array([label for _, label in slices])
    cut = best_cut(similarity, unhealthy)
    assert cut.accuracy == pytest.approx(((similarity <= cut.value) == unhealthy).mean())
    assert cut.accuracy == pytest.approx(every_cut(similarity, unhealthy))


def test_of_equally_good_cuts_the_one_in_the_widest_gap():
    similarity = np.array([0.1, 0.2, 0.8, 0.9])
    # Cuts after 0.1 (gap 0.1) and after 0.2 (gap 0.6) are right in three of four.
    assert best_cut(similarity, np.array([True, False, False, True])).value == pytest.approx(0.15)
    assert best_cut(similarity, np.array([True, False, True, False])).value in (
        pytest.approx(0.15),
        pytest.approx(0.85),
    )
    assert best_cut(np.array([0.1, 0.2, 0.8]), np.array([True, True, False])).value == pytest.approx(0.5)


def test_a_cut_lies_between_its_neighbours_however_close_they_are():
    low = np.float32(1 - 2**-24)
    similarity = np.array([low, 1.0], dtype=np.float32)
    cut = best_cut(similarity, np.array([True, False])).value
    assert low < cut < 1.0


def test_the_cosine_is_computed_in_float64():
    evidence, labels, patients = made_up()
    single = evidence.map(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor)
    assert single.similarity.dtype == torch.float64
    found = calibrate(single, labels, patients)
    similarity = single.at(found.strength).similarity[:, 0].numpy()
    chosen = next(one for one in found.candidates if one.strength == found.strength)
    assert ((similarity <= found.cut) == (labels == 1)).mean() == pytest.approx(chosen.accuracy)


def test_without_context_everything_is_fitted_once():
    evidence, labels, patients = made_up()
    places = SlicePositions(np.arange(len(labels)), np.zeros(len(labels)))
    assert len(calibrate(evidence, labels, patients, positions=places, context_mm=0.0).fitted) == 1
    assert len(calibrate(evidence, labels, patients, positions=places).fitted) == 2


def test_both_ends_are_cuts():
    similarity = np.array([0.3, 0.4])
    assert not (similarity <= best_cut(similarity, np.array([False, False])).value).any()
    assert (similarity <= best_cut(similarity, np.array([True, True])).value).all()


@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
def test_the_curve_detector_is_scikit_learns_logistic_regression(strength):
    rng = np.random.default_rng(1)
    logs = rng.normal(size=(80, 6)) * [1, 2, 3, 1, 1, 5] + 4
    unhealthy = logs @ [0.5, -0.2, 0.1, 0, 1, 0] + rng.normal(size=80) > 4.5
    ours = fit_curve(logs, unhealthy, strength)
    standard = (logs - logs.mean(0)) / logs.std(0)
    theirs = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(standard, unhealthy)
    np.testing.assert_allclose(ours.weights, theirs.coef_[0], atol=1e-4)
    np.testing.assert_allclose(ours.scores(logs), theirs.decision_function(standard), atol=1e-3)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_scikit_learns(slices):
    scores, truth = np.array([s for s, _ in slices], float), np.array([t for _, t in slices])
    if truth.all() or not truth.any():
        assert np.isnan(auc(scores, truth))
    else:
        assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores))


def test_folds_keep_patients_together_and_cover_every_slice_once():
    patients = np.repeat(list("abcdefg"), [1, 9, 3, 3, 3, 2, 5])
    folds = patient_folds(patients)
    assert len(folds) == 5
    assert (np.sum(folds, axis=0) == 1).all()
    for fold in folds:
        assert not set(patients[fold]) & set(patients[~fold])
    assert len(patient_folds(np.array(["a", "b", "b"]))) == 2


def test_held_out_scores_come_from_detectors_that_have_not_seen_the_patient():
    patients = np.repeat(np.arange(10), 3)

    def fit(rows):
        seen = set(patients[rows])
        return lambda held_out: np.array([float(int(p) in seen) for p in held_out])

    assert not held_out_scores(fit, patients, patients).any()


def test_shuffled_labels_do_not_look_better_than_chance_when_patients_are_held_out():
    """A strength chosen, and a detector fitted, on noise: cross-validation must see through it."""
    rng = np.random.default_rng(3)
    evidence, _, _ = made_up(200, lift=1.0)
    labels, patients = rng.integers(0, 2, 200), rng.integers(0, 20, 200)
    found = calibrate(evidence, labels, patients)
    assert found.fitted[0].curve_accuracy.accuracy < 0.62
    assert found.cosine_accuracy.accuracy < 0.62


def test_the_strength_of_the_fit_grows_with_the_evidence():
    rng = np.random.default_rng(0)
    labels, patients = rng.integers(0, 2, 300).astype(bool), np.arange(300) // 10
    noise = rng.normal(size=(300, 8))
    assert choose_fit_strength(noise, labels, patients) < 0.1
    assert choose_fit_strength(noise + 3 * labels[:, None], labels, patients) > 0.01


def candidates(*accuracies):
    return [Candidate(float(w), accuracy, 0.0, 0.0) for w, accuracy in enumerate(accuracies)]


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
def test_the_largest_strength_that_is_nearly_as_accurate(accuracies, ratio, best, chosen):
    found = choose_strength(candidates(*accuracies), ratio)
    assert [one.strength for one in found] == [best, chosen]


def test_separable_slices_are_separated():
    evidence, labels, patients = made_up(80, lift=30.0)
    found = calibrate(evidence, labels, patients)
    assert found.fitted[0].curve_accuracy.accuracy > 0.95
    assert found.n_healthy == found.n_unhealthy == 40
    assert found.n_patients == 20
    column = evidence.strengths.index(found.strength)
    assert found.divergence_max == pytest.approx(float(evidence.divergence[:, column].max()))
    rated = {one.strength: one for one in found.candidates}
    similarity = torch.cosine_similarity(evidence.mse_guided[:, column], evidence.mse_unguided, dim=1).numpy()
    assert rated[found.strength].accuracy == pytest.approx(every_cut(similarity, labels == 1))


def test_the_healthy_threshold_is_a_percentile_of_filtered_healthy_maps():
    evidence, labels, patients = made_up()
    found = calibrate(evidence, labels, patients)
    maps = evidence.at(found.strength).maps[:, 0].float().numpy()[labels == 0]
    expected = np.percentile([median_filter(one, 5, mode="reflect") for one in maps], 99.8)
    assert found.fitted[0].healthy_threshold == pytest.approx(expected, rel=1e-6)


def test_order_of_slices_changes_nothing():
    evidence, labels, patients = made_up()
    order = np.random.default_rng(0).permutation(len(labels))
    one, other = (
        calibrate(evidence, labels, patients),
        calibrate(evidence.map(lambda t: t[order]), labels[order], patients[order]),
    )
    assert one.strength == other.strength
    assert one.cut == other.cut
    assert one.divergence_max == other.divergence_max


def test_a_calibration_survives_its_file():
    evidence, labels, patients = made_up()
    places = SlicePositions(patients, np.arange(len(labels)) * 2.0)
    found = replace(
        calibrate(evidence, labels, patients, positions=places), checkpoint_sha256="abc", modalities=("flair",)
    )
    again = from_json(to_json(found), "here")
    assert to_json(again) == to_json(found)
    assert again.settings == found.settings
    logs = np.random.default_rng(0).normal(size=(5, len(LEVELS)))
    np.testing.assert_array_equal(again.fitted[1].curve.scores(logs), found.fitted[1].curve.scores(logs))


def test_a_file_without_map_auc_is_read():
    evidence, labels, patients = made_up()
    values = json.loads(to_json(calibrate(evidence, labels, patients)))
    for one in values["candidates"]:
        del one["map_auc"]
    again = from_json(json.dumps(values), "here")
    assert {one.map_auc for one in again.candidates} == {None}
    values["candidates"][0]["accuracy"] = None
    with pytest.raises(CalibrationError, match="calibrate again"):
        from_json(json.dumps(values), "here")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"strength": ', '"strength": NaN, "x": '),
        ('"cut": ', '"cut": 1e999, "x": '),
        ('"divergence_max": ', '"divergence_max": -'),
        ('"levels": [\n      ', '"levels": [\n      5000, '),
        ('"channels": [\n      0', '"channels": [\n      7'),
        ('"healthy_threshold": ', '"healthy_threshold": "x", "x": '),
        ('"accuracy": 0', '"accuracy": 0E, "accuracy": 1e999, "accuracy": 1e999'),
    ],
)
def test_a_file_with_invalid_values_is_refused(before, after):
    evidence, labels, patients = made_up()
    text = to_json(replace(calibrate(evidence, labels, patients), checkpoint_sha256="abc", modalities=("flair",)))
    from_json(text, "here")
    assert before in text
    with pytest.raises(CalibrationError, match="calibrate again"):
        from_json(text.replace(before, after, 1), "here")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1}', '{"format": 99}', "null", 100_000 * "["])
def test_a_damaged_file_is_refused(text):
    with pytest.raises(CalibrationError, match="calibrate again"):
        from_json(text, "here")


@pytest.mark.parametrize(
    ("labels", "match"),
    [([0] * 40, "both classes"), ([1] * 40, "both classes"), ([0, 1], "one each"), ([0, 2] * 20, "labelled")],
)
def test_labels_that_do_not_suffice(labels, match):
    evidence, _, patients = made_up()
    with pytest.raises(CalibrationError, match=match):
        calibrate(evidence, labels, patients)


def test_a_model_that_ignores_its_labels_is_refused():
    x0 = torch.rand(4, 1, 8, 8)
    evidence = forward_evidence(
        Elementwise(difference=0.0), x0, levels=[0, 50], strengths=[1.0, 2.0], schedule=NoiseSchedule.linear(),
        seeds=range(4),
    )  # fmt: skip
    with pytest.raises(CalibrationError, match="train it longer"):
        calibrate(evidence, [0, 1, 0, 1], list("aabb"))


def test_accuracy_is_unknown_with_a_single_patient():
    evidence, labels, _ = made_up(12)
    found = calibrate(evidence, labels, ["a"] * 12)
    assert np.isnan(found.cosine_accuracy.accuracy)
    assert found.detector == "cosine"
    assert "NaN" not in to_json(found)
    again = from_json(to_json(found), "here")
    assert again.n_patients == 1
    assert np.isnan(again.cosine_accuracy.accuracy)
    assert np.isnan(again.fitted[0].curve_accuracy.auc)


def test_smoothing_is_a_gaussian_in_millimetres_within_each_scan():
    places = SlicePositions(np.array([0, 0, 0, 1]), np.array([0.0, 2.0, 10.0, 2.0]))
    values = np.array([1.0, 3.0, 7.0, 100.0])
    w = np.exp(-(2.0**2) / (2 * 2.0**2))
    expected = [(1 + w * 3) / (1 + w), (3 + w * 1) / (1 + w), 7.0, 100.0]  # 10 mm is beyond three sigmas
    np.testing.assert_allclose(smooth_across_slices(values, places, 2.0), expected, rtol=1e-6)
    assert smooth_across_slices(values, places, 0.0) is values
    maps = np.random.default_rng(0).random((4, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(
        smooth_across_slices(maps, places, 2.0)[:, 2, 3], smooth_across_slices(maps[:, 2, 3], places, 2.0), rtol=1e-6
    )


def test_by_maps_only_a_chosen_strength_at_the_edge_matters():
    """AUC levels off; what matters is whether the chosen one is the largest."""
    rated = tuple(Candidate(w, 0.9, 0.0, 0.9, found) for w, found in ((1.0, 0.94), (3.0, 0.95)))
    found = replace(calibrate(*made_up()), candidates=rated, best_strength=3.0, strength=1.0)
    assert replace(found, strength_by="cosine").at_edge
    assert not replace(found, strength_by="map").at_edge
    assert replace(found, strength_by="map", strength=3.0).at_edge


def test_by_maps_the_weakest_strength_that_is_nearly_as_good():
    rated = [Candidate(w, 0.9, 0.0, 0.9, found) for w, found in ((1.0, 0.7), (3.0, 0.94), (5.0, 0.95), (8.0, 0.96))]
    best, chosen = choose_strength(rated, 0.98, "map")
    assert (best.strength, chosen.strength) == (8.0, 5.0)  # 0.98 * 0.96 = 0.9408
    assert choose_strength(rated, 1.0, "map")[1].strength == 8.0


def test_by_maps_the_strength_whose_maps_separate_the_classes():
    """The cosine separates best at strength 0, the maps at strength 2; at 4, healthy slices are bright as well."""
    rng = np.random.default_rng(0)
    unhealthy = np.arange(40) % 2 == 1
    maps = rng.uniform(0, 0.1, (40, 3, 16, 16)).astype(np.float32)
    maps[unhealthy, 1, :4, :4] += 0.5
    maps[:, 2, :4, :4] += rng.uniform(0, 1, (40, 1, 1))
    flat = torch.ones(40, 3, 2)
    guided = flat.clone()
    guided[unhealthy, 0, 0] = 0.2
    guided[rng.permutation(40)[:20], 1, 0] = 0.2
    guided[rng.permutation(40)[:20], 2, 0] = 0.2
    evidence = Evidence(
        EvidenceSettings((0, 100), (0,)),
        (0.0, 2.0, 4.0),
        flat,
        guided,
        flat[:, 0],
        torch.zeros(40, 3),
        {Signal.ERROR: SignalMaps(torch.tensor(maps), torch.tensor(maps))},
    )
    patients = np.arange(40) // 8
    by_cosine = calibrate(evidence, unhealthy.astype(int), patients)
    by_map = calibrate(evidence, unhealthy.astype(int), patients, strength_by="map")
    assert (by_cosine.strength, by_map.strength) == (0.0, 2.0)
    assert by_map.best_strength == 2.0
    assert (by_cosine.strength_by, by_map.strength_by) == ("cosine", "map")
    assert from_json(to_json(by_map), "here").strength_by == "map"
    wanted = [
        roc_auc_score(unhealthy, maps[:, w].reshape(40, -1).max(axis=1)) for w in range(3)
    ]  # one pixel is smallest
    assert [one.map_auc for one in by_map.candidates] == pytest.approx(wanted)
    with pytest.raises(ConfigError, match="cosine, map"):
        calibrate(evidence, unhealthy.astype(int), patients, strength_by="mask")
