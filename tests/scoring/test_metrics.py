"""Pixel metrics against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    jaccard_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

from anofpdm.cohorts.store import foreground
from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.pixels import (
    average_precision,
    confusion,
    dice,
    mean_defined,
    roc_auc,
)

EMPTY = np.zeros((1, 4, 4), dtype=bool)
FULL = ~EMPTY
MASKS = arrays(bool, (3, 4, 5))
# Few values, so that ties abound, or any at all.
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 0.25, 1.0]), st.floats(-1e6, 1e6, width=32))


@st.composite
def ranked(draw):
    """Scores and truth, flat, with at least one pixel of each kind."""
    rows = draw(st.lists(st.tuples(SCORES, st.booleans()), min_size=0, max_size=60))
    rows += [(draw(SCORES), True), (draw(SCORES), False)]
    rows = draw(st.permutations(rows))
    return np.array([score for score, _ in rows]), np.array([lesion for _, lesion in rows])


def masks(*slices: str) -> np.ndarray:
    """Rows of a slice parted by '/', pixels '#' or '.'."""
    return np.array([[[pixel == "#" for pixel in row] for row in slice_.split("/")] for slice_ in slices])


# ---- masks -----------------------------------------------------------------------------------------------------------


@given(MASKS, MASKS)
def test_dice_and_iou_equal_scikit_learn(predicted, truth):
    for ours, theirs in [(dice(predicted, truth), f1_score), (confusion(predicted, truth).iou, jaccard_score)]:
        expected = [theirs(b.ravel(), a.ravel(), zero_division=1) for a, b in zip(predicted, truth, strict=True)]
        np.testing.assert_allclose(ours, expected, atol=1e-9)


@given(MASKS, MASKS)
def test_pooled_precision_and_recall_equal_scikit_learn(predicted, truth):
    counts, flat = confusion(predicted, truth), (truth.ravel(), predicted.ravel())
    for ours, theirs in [(counts.precision, precision_score), (counts.recall, recall_score)]:
        assert ours == pytest.approx(theirs(*flat, zero_division=np.nan), abs=1e-9, nan_ok=True)


def test_volume_dice_stacks_the_slices_of_a_patient_in_any_order():
    predicted = masks("##/..", "../..", "##/..", "#./..")
    truth = masks("#./..", "../..", "##/##", "../..")
    patients = np.array(["b", "healthy", "a", "b"])
    by_patient = confusion(predicted, truth).by_patient(patients).volume_dice
    np.testing.assert_allclose(by_patient, [2 * 2 / 6, 2 * 1 / 4, np.nan])  # a, b, healthy
    assert mean_defined(by_patient) == pytest.approx((2 / 3 + 1 / 2) / 2)


@pytest.mark.parametrize("measure", [dice, confusion])
def test_incompatible_masks_are_refused(measure):
    with pytest.raises(EvaluationError, match="must match"):
        measure(EMPTY, FULL[:, :2])
    with pytest.raises(EvaluationError, match="boolean"):
        measure(EMPTY.astype(np.uint8), FULL)


# ---- maps ------------------------------------------------------------------------------------------------------------


@given(ranked())
def test_average_precision_and_auc_equal_scikit_learn(pixels):
    scores, truth = pixels
    assert average_precision(scores, truth) == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert roc_auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


@pytest.mark.parametrize("area", [average_precision, roc_auc])
def test_map_with_nan_is_refused(area):
    truth = np.array([True, False, False])
    with pytest.raises(EvaluationError, match="1 of 3 scores are not numbers"):
        area(np.array([1.0, np.nan, 0.0]), truth)
    with pytest.raises(EvaluationError, match="must match"):
        area(np.array([1.0, 0.0]), truth)
    with pytest.raises(EvaluationError, match="boolean"):
        area(np.array([1.0, 0.5, 0.0]), truth.astype(int))


def test_foreground_thresholds_the_mean_over_channels():
    pixels = np.full((1, 2, 1, 4), -1, dtype=np.float32)
    pixels[0, :, 0, 1] = -0.95  # at the cut
    pixels[0, 1, 0, 2] = -0.88  # mean -0.94
    pixels[0, 1, 0, 3] = -0.92  # mean -0.96
    np.testing.assert_array_equal(foreground(pixels), [[[False, False, True, False]]])
