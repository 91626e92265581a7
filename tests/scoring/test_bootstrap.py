"""Intervals against explicit resampling of patients."""

import numpy as np
import pytest

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.bootstrap import patient_bootstrap, ranking_bootstrap, ratio_bootstrap, score_histograms
from anofpdm.scoring.metrics.lesions import lesion_counts
from anofpdm.scoring.metrics.pixels import (
    average_precision,
    confusion,
    mean_defined,
    precision_recall_area,
    roc_area,
    roc_auc,
)


def literal(number, patients: np.ndarray, repeats: int, seed: int) -> tuple[float, float]:
    """Sample patients, gather all their rows, compute the number; again and again."""
    rng, names = np.random.default_rng(seed), np.unique(patients)
    own = {name: np.flatnonzero(patients == name) for name in names}
    resampled = [number(np.concatenate([own[name] for name in rng.choice(names, len(names))])) for _ in range(repeats)]
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def rows_of(counts, rows: np.ndarray):
    """The same counts of some slices only."""
    return type(counts)(**{name: values[rows] for name, values in vars(counts).items()})


def uneven_patients(rng: np.random.Generator, n_patients: int) -> np.ndarray:
    """1 to 8 slices each, shuffled."""
    return rng.permutation(np.repeat(np.arange(n_patients), rng.integers(1, 9, n_patients)))


def lesion_maps(seed: int, rate: float, n_patients: int = 12) -> tuple[np.ndarray, ...]:
    """Maps that see the lesions of some patients better than those of others, [N, 24, 24]."""
    rng = np.random.default_rng(seed)
    patients = uneven_patients(rng, n_patients)
    truth = rng.random((len(patients), 24, 24)) < rate
    clarity = rng.uniform(0.5, 3, n_patients)[patients][:, None, None]
    maps = (rng.normal(size=truth.shape) + clarity * truth).astype(np.float32)
    inside = rng.random(truth.shape) < 0.7
    return maps, truth, inside, patients


# ---- means and ratios ------------------------------------------------------------------------------------------------


def test_mean_equals_explicit_resampling():
    rng = np.random.default_rng(0)
    patients = uneven_patients(rng, 30)
    values = rng.normal(size=30)[patients] + rng.normal(size=len(patients)) * 0.3
    values[rng.random(len(values)) < 0.1] = np.nan
    slow = literal(lambda rows: mean_defined(values[rows]), patients, repeats=10_000, seed=1)
    fast = patient_bootstrap(values, patients, repeats=10_000, seed=2)
    width = slow[1] - slow[0]
    np.testing.assert_allclose(fast, slow, atol=0.04 * width)


def test_slices_of_a_patient_are_resampled_together():
    """Twenty copies of each slice say nothing new."""
    values = np.random.default_rng(4).random(50)
    once = patient_bootstrap(values, np.arange(50))
    np.testing.assert_allclose(patient_bootstrap(np.repeat(values, 20), np.repeat(np.arange(50), 20)), once)


def test_pooled_ratios_equal_explicit_resampling():
    rng = np.random.default_rng(6)
    patients = uneven_patients(rng, 25)
    skill = rng.uniform(0.3, 0.9, 25)[patients][:, None, None]
    truth = rng.random((len(patients), 8, 8)) < 0.15
    predicted = np.where(truth, rng.random(truth.shape) < skill, rng.random(truth.shape) < 0.05)
    pixels, lesions = confusion(predicted, truth), lesion_counts(predicted, truth)
    hits = 2 * lesions.detected
    cases = [
        (pixels.tp, pixels.tp + pixels.fp, lambda rows: rows_of(pixels, rows).precision),
        (pixels.tp, pixels.tp + pixels.fn, lambda rows: rows_of(pixels, rows).recall),
        (hits, hits + lesions.missed + lesions.false, lambda rows: rows_of(lesions, rows).f1),
    ]
    for tops, bottoms, number in cases:
        slow = literal(number, patients, repeats=5000, seed=1)
        fast = ratio_bootstrap(tops, bottoms, patients, repeats=5000, seed=2)
        np.testing.assert_allclose(fast, slow, atol=0.05 * (slow[1] - slow[0]))


def test_interval_is_undefined_with_fewer_than_two_patients():
    assert np.isnan(patient_bootstrap(np.array([0.2, 0.4]), np.array(["a", "a"]))).all()  # one patient
    assert np.isnan(patient_bootstrap(np.array([]), np.array([]))).all()
    assert np.isnan(patient_bootstrap(np.array([np.nan, np.nan]), np.array(["a", "b"]))).all()
    assert np.isnan(ratio_bootstrap(np.zeros(3), np.zeros(3), np.arange(3))).all()


# ---- rankings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 0.02, 0.002])
def test_binning_error_is_small(rate):
    maps, truth, inside, patients = lesion_maps(0, rate, n_patients=60)
    true, false = (counts.sum(axis=0) for counts in score_histograms(maps, truth, inside, patients))
    assert true.sum() == truth[inside].sum()
    assert false.sum() == (~truth)[inside].sum()
    exact = average_precision(maps[inside], truth[inside]), roc_auc(maps[inside], truth[inside])
    assert precision_recall_area(true, false) == pytest.approx(exact[0], abs=1e-3)
    assert roc_area(true, false) == pytest.approx(exact[1], abs=1e-4)


def test_rankings_equal_explicit_resampling():
    maps, truth, inside, patients = lesion_maps(2, 0.03)
    ranking = ranking_bootstrap(maps, truth, inside, patients, repeats=600, seed=1)
    for number, estimate in zip((average_precision, roc_auc), ranking, strict=True):
        assert estimate.value == number(maps[inside], truth[inside])

        def of_rows(rows, number=number):
            return number(maps[rows][inside[rows]], truth[rows][inside[rows]])

        slow = literal(of_rows, patients, repeats=600, seed=2)
        np.testing.assert_allclose(estimate.interval, slow, atol=0.15 * (slow[1] - slow[0]))


def test_rankings_without_a_lesion_or_a_second_patient_are_undefined():
    maps, truth, inside, patients = lesion_maps(5, 0.1)
    healthy = ranking_bootstrap(maps, np.zeros_like(truth), inside, patients)
    for estimate in healthy:
        assert np.isnan([estimate.value, *estimate.interval]).all()
    alone = ranking_bootstrap(maps, truth, inside, np.zeros_like(patients))[1]
    assert alone.value == roc_auc(maps[inside], truth[inside])
    assert np.isnan(alone.interval).all()


def test_invalid_rankings_are_refused():
    maps, truth, inside, patients = lesion_maps(6, 0.1)
    for wrong, message in (
        ((maps, truth, inside, patients[1:]), "patient names"),
        ((maps, truth, inside[:, :5], patients), "must match"),
        ((np.full_like(maps, np.nan), truth, inside, patients), "not numbers"),
    ):
        with pytest.raises(EvaluationError, match=message):
            ranking_bootstrap(*wrong)
