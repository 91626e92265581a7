"""Intervals against explicit resampling of patients."""

import numpy as np
import pytest

from anofpdm.scoring.metrics import bootstrap
from anofpdm.scoring.metrics.bootstrap import mean_estimate, ratio_estimate


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
