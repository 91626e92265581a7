"""Reliability of probabilities, against worked examples and scikit-learn."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.reliability import reliability


@pytest.mark.parametrize("bins", [5, 10, 15])
def test_bins_are_those_of_scikit_learn(bins):
    rng = np.random.default_rng(bins)
    probabilities = np.concatenate([rng.beta(0.4, 0.6, 5000), [0, 1]])
    truth = rng.random(5002) < probabilities**2
    table = reliability(probabilities, truth, bins)
    share, mean = calibration_curve(truth, probabilities, n_bins=bins)
    np.testing.assert_allclose(table.positive_share, share)
    np.testing.assert_allclose(table.mean_probability, mean)
    expected = np.abs(share - mean) @ table.count / len(truth)
    assert table.calibration_error == pytest.approx(expected)


def test_worked_example():
    """Bin 0 to 0.5: mean 0.2, share 1/2. Bin 0.5 to 1: mean 0.9, share 1/2."""
    table = reliability(np.array([0.1, 0.3, 0.8, 1.0]), np.array([False, True, True, False]), bins=2)
    assert table.count.tolist() == [2, 2]
    assert table.calibration_error == pytest.approx((0.3 + 0.4) / 2)


def test_calibrated_probabilities_have_a_small_error_and_squared_ones_a_known_one():
    """Uniform p, lesion with chance p^2: the expected error is the integral of p - p^2, which is 1/6."""
    rng = np.random.default_rng(0)
    probabilities, chance = rng.random(400_000), rng.random(400_000)
    assert reliability(probabilities, chance < probabilities).calibration_error < 0.005
    assert reliability(probabilities, chance < probabilities**2).calibration_error == pytest.approx(1 / 6, abs=0.005)


def test_parts_add_up_to_the_whole():
    rng = np.random.default_rng(1)
    probabilities, truth = rng.random(100), rng.random(100) < 0.3
    parts = reliability(probabilities[:40], truth[:40]) + reliability(probabilities[40:], truth[40:])
    whole = reliability(probabilities, truth)
    np.testing.assert_allclose(parts.mean_probability, whole.mean_probability)
    assert parts.calibration_error == pytest.approx(whole.calibration_error)


def test_empty_bins_and_no_values_are_undefined():
    table = reliability(np.array([0.95]), np.array([True]))
    assert np.isnan(table.positive_share[:9]).all()
    assert table.calibration_error == pytest.approx(0.05)
    assert np.isnan(reliability(np.array([]), np.array([], dtype=bool)).calibration_error)


@pytest.mark.parametrize("wrong", [[1.2], [-0.1], [np.nan]])
def test_other_numbers_than_probabilities_are_refused(wrong):
    with pytest.raises(EvaluationError):
        reliability(np.array(wrong), np.array([True]))
