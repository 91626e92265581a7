"""Intervals against explicit resampling of patients."""

import numpy as np
import pytest

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics import bootstrap
from anofpdm.scoring.metrics.bootstrap import mean_estimate, ranking_estimates, ratio_estimate
from anofpdm.scoring.metrics.pixels import average_precision, roc_auc


def resample(number, patients: np.ndarray, repeats: int) -> tuple[float, float]:
    """Sample patients, gather all their rows, compute the number; again and again."""
    rng, names = np.random.default_rng(1), np.unique(patients)
    own = {name: np.flatnonzero(patients == name) for name in names}
    resampled = [number(np.concatenate([own[name] for name in rng.choice(names, len(names))])) for _ in range(repeats)]
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def uneven_patients(rng: np.random.Generator, n_patients: int) -> np.ndarray:
    """1 to 8 slices each, shuffled."""
    return rng.permutation(np.repeat(np.arange(n_patients), rng.integers(1, 9, n_patients)))


def lesion_maps(seed: int, rate: float, n_patients: int = 12) -> tuple[np.ndarray, ...]:
    """Maps that show the lesions of some patients better than those of others, [N, 24, 24]."""
    rng = np.random.default_rng(seed)
    patients = uneven_patients(rng, n_patients)
    truth = rng.random((len(patients), 24, 24)) < rate
    clarity = rng.uniform(0.5, 3, n_patients)[patients][:, None, None]
    maps = (rng.normal(size=truth.shape) + clarity * truth).astype(np.float32)
    inside = rng.random(truth.shape) < 0.7
    return maps, truth, inside, patients


@pytest.mark.parametrize("kind", ["mean", "ratio"])
def test_a_mean_and_a_ratio_equal_explicit_resampling(monkeypatch, kind):
    monkeypatch.setattr(bootstrap, "REPEATS", 5000)
    rng = np.random.default_rng(6)
    patients = uneven_patients(rng, 25)
    bottoms = rng.integers(0, 40, len(patients))
    tops = rng.binomial(bottoms, rng.uniform(0.3, 0.9, 25)[patients])
    values = np.where(bottoms > 3, tops / np.maximum(bottoms, 1), np.nan)
    estimate = mean_estimate(values, patients) if kind == "mean" else ratio_estimate(tops, bottoms, patients)

    def number(rows):
        return np.nanmean(values[rows]) if kind == "mean" else tops[rows].sum() / bottoms[rows].sum()

    assert estimate.value == pytest.approx(number(np.arange(len(patients))))
    expected = resample(number, patients, 5000)
    np.testing.assert_allclose(estimate.interval, expected, atol=0.05 * np.diff(expected).item())


def test_an_interval_is_undefined_with_fewer_than_two_patients():
    for values, patients in (([0.2, 0.4], ["a", "a"]), ([], []), ([np.nan, np.nan], ["a", "b"])):
        assert np.isnan(mean_estimate(np.array(values), np.array(patients)).interval).all()
    ratio = ratio_estimate(np.zeros(3), np.zeros(3), np.arange(3))
    assert np.isnan([ratio.value, *ratio.interval]).all()


@pytest.mark.parametrize("bins", [64, 4096])
def test_rankings_equal_explicit_resampling(monkeypatch, bins):
    monkeypatch.setattr(bootstrap, "BINS", bins)
    maps, truth, inside, patients = lesion_maps(2, 0.03)
    for number, estimate in zip(
        (average_precision, roc_auc), ranking_estimates(maps, truth, inside, patients), strict=True
    ):
        assert estimate.value == number(maps[inside], truth[inside])

        def of_rows(rows, number=number):
            return number(maps[rows][inside[rows]], truth[rows][inside[rows]])

        expected = resample(of_rows, patients, 600)
        np.testing.assert_allclose(estimate.interval, expected, atol=0.15 * np.diff(expected).item())


def test_rankings_without_a_lesion_or_a_second_patient_are_undefined():
    maps, truth, inside, patients = lesion_maps(5, 0.1)
    for estimate in ranking_estimates(maps, np.zeros_like(truth), inside, patients):
        assert np.isnan([estimate.value, *estimate.interval]).all()
    alone = ranking_estimates(maps, truth, inside, np.zeros_like(patients))[1]
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
            ranking_estimates(*wrong)
