"""Against scikit-learn, and against cases counted by hand."""

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
    volume_dice,
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


def test_dice_and_iou_counted_by_hand():
    predicted = masks("##/..", "#./..", "../..", "../..", "##/##")
    truth = masks("#./#.", "../.#", "../..", "##/..", "##/##")
    np.testing.assert_allclose(dice(predicted, truth), [2 / 4, 0, 1, 0, 1])
    np.testing.assert_allclose(confusion(predicted, truth).iou, [1 / 3, 0, 1, 0, 1])


@given(MASKS, MASKS)
def test_dice_and_iou_equal_scikit_learn(predicted, truth):
    for row, (one, other) in enumerate(zip(predicted, truth, strict=True)):
        flat = other.ravel(), one.ravel()
        assert dice(predicted, truth)[row] == pytest.approx(f1_score(*flat, zero_division=1), abs=1e-9)
        assert confusion(predicted, truth).iou[row] == pytest.approx(jaccard_score(*flat, zero_division=1), abs=1e-9)


def test_pooled_precision_and_recall_counted_by_hand():
    counts = confusion(masks("##/#.", "#./.."), masks("#./.#", "../.#"))
    np.testing.assert_array_equal([counts.tp, counts.fp, counts.fn], [[1, 0], [2, 1], [1, 1]])
    assert counts.precision == 1 / 4  # of 4 predicted pixels; the mean of the slices' would be 1 / 6
    assert counts.recall == 1 / 3


@given(MASKS, MASKS)
def test_pooled_precision_and_recall_equal_scikit_learn(predicted, truth):
    counts, flat = confusion(predicted, truth), (truth.ravel(), predicted.ravel())
    for ours, theirs in [(counts.precision, precision_score), (counts.recall, recall_score)]:
        assert ours == pytest.approx(theirs(*flat, zero_division=np.nan), abs=1e-9, nan_ok=True)


def test_precision_without_a_prediction_and_recall_without_a_lesion_are_undefined():
    nothing, everything = confusion(EMPTY, FULL), confusion(FULL, EMPTY)
    assert np.isnan(nothing.precision)
    assert nothing.recall == 0
    assert np.isnan(everything.recall)
    assert everything.precision == 0


def test_volume_dice_stacks_the_slices_of_a_patient_in_any_order():
    predicted = masks("##/..", "../..", "##/..", "#./..")
    truth = masks("#./..", "../..", "##/##", "../..")
    patients = np.array(["b", "healthy", "a", "b"])
    by_patient = volume_dice(predicted, truth, patients)
    np.testing.assert_allclose(by_patient, [2 * 2 / 6, 2 * 1 / 4, np.nan])  # a, b, healthy
    assert mean_defined(by_patient) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_volume_dice_of_a_healthy_patient_is_undefined():
    assert np.isnan(volume_dice(FULL, EMPTY, np.array(["a"]))).all()


def test_volume_dice_of_patients_with_one_slice_is_dice():
    rng = np.random.default_rng(0)
    predicted, truth = rng.random((2, 20, 6, 6)) < 0.3
    np.testing.assert_allclose(volume_dice(predicted, truth, np.arange(20)), dice(predicted, truth))


@pytest.mark.parametrize("measure", [dice, confusion])
def test_incompatible_masks_are_refused(measure):
    with pytest.raises(EvaluationError, match="must match"):
        measure(EMPTY, FULL[:, :2])
    with pytest.raises(EvaluationError, match="boolean"):
        measure(EMPTY.astype(np.uint8), FULL)


def test_every_slice_needs_a_patient():
    with pytest.raises(EvaluationError, match="2 patient names for 1 slices"):
        volume_dice(EMPTY, FULL, np.array(["a", "b"]))


def test_mean_of_defined_values():
    assert mean_defined(np.array([1, np.nan, 2])) == 1.5
    assert np.isnan(mean_defined(np.array([np.nan])))
    assert np.isnan(mean_defined(np.array([])))


# ---- maps ------------------------------------------------------------------------------------------------------------


def test_average_precision_and_auc_counted_by_hand():
    scores, truth = np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, True, False, False])
    assert average_precision(scores, truth) == pytest.approx(1 / 2 * 1 + 1 / 2 * 2 / 3)
    assert roc_auc(scores, truth) == pytest.approx((2 + 1.5) / 4)  # pairs won, a tie for half


@given(ranked())
def test_average_precision_and_auc_equal_scikit_learn(pixels):
    scores, truth = pixels
    assert average_precision(scores, truth) == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert roc_auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


def test_many_single_precision_pixels_equal_scikit_learn():
    rng = np.random.default_rng(1)
    truth = rng.random(50_000) < 0.02
    scores = (rng.normal(size=50_000) + 2 * truth).astype(np.float32).round(2)
    assert average_precision(scores, truth) == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert roc_auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


def test_infinite_scores_are_ties():
    scores, truth = np.array([np.inf, np.inf, -np.inf, -np.inf]), np.array([True, False, True, False])
    assert roc_auc(scores, truth) == 0.5
    assert average_precision(scores, truth) == 0.5


def test_without_both_kinds_of_pixels_the_areas_are_undefined():
    scores, none = np.array([1.0, 2.0]), np.zeros(2, dtype=bool)
    assert np.isnan(average_precision(scores, none))
    assert np.isnan(roc_auc(scores, none))
    assert average_precision(scores, ~none) == 1
    assert np.isnan(roc_auc(scores, ~none))
    assert np.isnan(average_precision(scores[:0], none[:0]))
    assert np.isnan(roc_auc(scores[:0], none[:0]))


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
