"""AUPRC and AUROC against scikit-learn, and their intervals against explicit resampling of patients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from anofpdm.errors import EvaluationError
from anofpdm.study.comparison import rankings
from anofpdm.study.comparison.rankings import average_precision, ranking_estimates, roc_auc
from tests.scoring.test_bootstrap import resample, uneven_patients

# Few values, so that ties abound, or any at all.
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 0.25, 1.0]), st.floats(-1e6, 1e6, width=32))


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=60), SCORES, SCORES)
def test_average_precision_and_auc_equal_scikit_learn(pixels, lesion_score, other_score):
    scores, truth = map(np.array, zip(*pixels, (lesion_score, True), (other_score, False), strict=True))
    assert average_precision(scores, truth) == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert roc_auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


def lesion_maps(seed: int, rate: float, n_patients: int = 12) -> tuple[np.ndarray, ...]:
    """Maps that show the lesions of some patients better than those of others, [N, 24, 24]."""
    rng = np.random.default_rng(seed)
    patients = uneven_patients(rng, n_patients)
    truth = rng.random((len(patients), 24, 24)) < rate
    clarity = rng.uniform(0.5, 3, n_patients)[patients][:, None, None]
    maps = (rng.normal(size=truth.shape) + clarity * truth).astype(np.float32)
    inside = rng.random(truth.shape) < 0.7
    return maps, truth, inside, patients


@pytest.mark.parametrize("bins", [64, 4096])
def test_rankings_equal_explicit_resampling(monkeypatch, bins):
    monkeypatch.setattr(rankings, "BINS", bins)
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
