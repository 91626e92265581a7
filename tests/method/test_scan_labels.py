import numpy as np
import pytest

from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.scan_labels import best_threshold, estimate_labels


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_threshold_of_two_normal_distributions_lies_half_way(share):
    """Youden's index of N(0, 1) and N(3, 1) is largest at 1.5, whatever the share of the second among the suspected."""
    rng = np.random.default_rng(0)
    n_lesion = round(share * 40_000)
    suspected = np.concatenate([rng.normal(3, 1, n_lesion), rng.normal(0, 1, 40_000 - n_lesion)])
    assert best_threshold(suspected, rng.normal(0, 1, 40_000)) == pytest.approx(1.5, abs=0.15)


def test_estimated_labels_are_close_to_the_true_ones():
    rng = np.random.default_rng(1)
    truth = np.where(rng.random(2000) < 0.4, UNHEALTHY, HEALTHY)
    suspected, scans = np.arange(2000) >= 800, np.arange(2000) // 100
    truth[~suspected] = HEALTHY  # controls
    scores = rng.normal(np.where(truth == UNHEALTHY, 4.0, 0.0), 1)
    estimated = estimate_labels(scores, np.where(suspected, 2, truth), suspected, scans)
    assert (estimated[suspected] == truth[suspected]).mean() > 0.95
    assert (estimated[~suspected] == HEALTHY).all()


def test_each_suspected_scan_has_an_unhealthy_slice():
    scores = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 0.0, 0.1])
    suspected, scans = np.array([False, False, False, True, True, True, True]), np.array([*"aaabbcc"])
    labels = np.where(suspected, 2, HEALTHY)
    estimated = estimate_labels(scores, labels, suspected, scans)
    assert estimated.tolist() == [HEALTHY] * 3 + [UNHEALTHY] * 2 + [HEALTHY, UNHEALTHY]


def test_labels_that_are_known_are_kept():
    scores = np.array([0.0, 9.0, 0.5, 8.0])
    labels, suspected = np.array([UNHEALTHY, HEALTHY, HEALTHY, 2]), np.array([False, False, False, True])
    estimated = estimate_labels(scores, labels, suspected, np.array([*"abcd"]))
    assert estimated.tolist() == [UNHEALTHY, HEALTHY, HEALTHY, UNHEALTHY]


def test_a_suspected_slice_beside_many_labelled_ones_is_judged_by_those():
    """Alone it would be its own threshold, and unhealthy."""
    scores = np.concatenate([np.linspace(0, 1, 50), np.linspace(4, 5, 50), [0.6]])
    labels = np.array([HEALTHY] * 50 + [UNHEALTHY] * 50 + [2])
    suspected, scans = labels == 2, np.array(["a"] * 50 + ["b"] * 51)
    assert estimate_labels(scores, labels, suspected, scans)[-1] == HEALTHY


def test_a_known_unhealthy_slice_is_enough_for_its_scan():
    scores = np.array([0.0, 0.1, 5.0, 0.0, 0.1, 7.0])
    labels, suspected = (
        np.array([HEALTHY, HEALTHY, 2, UNHEALTHY, 2, 2]),
        np.array([False, False, True, False, True, True]),
    )
    estimated = estimate_labels(scores, labels, suspected, np.array([*"aabccd"]))
    assert estimated.tolist() == [HEALTHY, HEALTHY, UNHEALTHY, UNHEALTHY, HEALTHY, UNHEALTHY]
