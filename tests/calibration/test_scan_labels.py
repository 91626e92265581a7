import numpy as np
import pytest

from anofpdm.calibration.scan_labels import best_threshold, estimate_labels
from anofpdm.labels import HEALTHY, UNHEALTHY

SUSPECTED = 2  # for labels in these tests: to be estimated


def estimated(scores, labels, scans):
    labels = np.array(labels)
    return estimate_labels(np.array(scores), labels, labels == SUSPECTED, np.array([*scans])).tolist()


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
    labels = np.array(estimated(scores, np.where(suspected, SUSPECTED, truth), scans))
    assert (labels[suspected] == truth[suspected]).mean() > 0.95
    assert (labels[~suspected] == HEALTHY).all()


@pytest.mark.parametrize(
    ("scores", "labels", "scans", "expected"),
    [
        # each suspected scan has an unhealthy slice
        ([0.0, 0.1, 0.2, 5.0, 5.1, 0.0, 0.1], [0, 0, 0, 2, 2, 2, 2], "aaabbcc", [0, 0, 0, 1, 1, 0, 1]),
        # known labels are kept
        ([0.0, 9.0, 0.5, 8.0], [1, 0, 0, 2], "abcd", [1, 0, 0, 1]),
        # a known unhealthy slice is enough for its scan
        ([0.0, 0.1, 5.0, 0.0, 0.1, 7.0], [0, 0, 2, 1, 2, 2], "aabccd", [0, 0, 1, 1, 0, 1]),
        # a suspected slice beside labelled ones is judged by those: alone it would be its own threshold, and unhealthy
        ([0.0, 0.5, 1.0, 4.0, 4.5, 5.0, 0.6], [0, 0, 0, 1, 1, 1, 2], "aaabbbb", [0, 0, 0, 1, 1, 1, 0]),
    ],
)
def test_labels_of_scans(scores, labels, scans, expected):
    assert estimated(scores, labels, scans) == expected
