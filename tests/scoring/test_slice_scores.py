"""Scores of slices against scikit-learn and explicit distances, and against lesions counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import binary_erosion
from scipy.spatial.distance import cdist
from sklearn.metrics import average_precision_score, f1_score, jaccard_score, roc_auc_score

from anofpdm.cohorts.store import foreground
from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.lesions import dice_by_size, hd95, lesion_area, lesion_counts
from anofpdm.scoring.metrics.pixels import average_precision, confusion, dice, roc_auc

EMPTY = np.zeros((1, 6, 7), dtype=bool)
FULL = ~EMPTY
MASKS = arrays(bool, (3, 4, 5))
# Few values, so that ties abound, or any at all.
SCORES = st.one_of(st.sampled_from([0.0, -0.0, 0.25, 1.0]), st.floats(-1e6, 1e6, width=32))


def masks(*slices: str) -> np.ndarray:
    """Rows of a slice parted by '/', pixels '#' or '.'."""
    return np.array([[[pixel == "#" for pixel in row] for row in slice_.split("/")] for slice_ in slices])


# ---- masks -----------------------------------------------------------------------------------------------------------


@given(MASKS, MASKS)
def test_dice_and_iou_equal_scikit_learn(predicted, truth):
    labels = [mask.reshape(len(mask), -1).T for mask in (truth, predicted)]  # a column per slice
    for ours, theirs in [(dice(predicted, truth), f1_score), (confusion(predicted, truth).iou, jaccard_score)]:
        np.testing.assert_allclose(ours, theirs(*labels, average=None, zero_division=1), atol=1e-9)


def test_volume_dice_stacks_the_slices_of_a_patient_in_any_order():
    predicted = masks("##/..", "../..", "##/..", "#./..")
    truth = masks("#./..", "../..", "##/##", "../..")
    volumes = confusion(predicted, truth).volume_dice(np.array(["b", "healthy", "a", "b"]))
    np.testing.assert_allclose(volumes, [2 * 2 / 6, 2 * 1 / 4, np.nan])  # a, b, healthy


@given(arrays(bool, (2, 3, 7, 6)))
def test_hd95_equals_explicit_pairwise_distances(pair):
    pair[:, :, 3, 3] = True  # none is empty
    expected = []
    for pair_of_slices in zip(*pair, strict=True):
        apart = cdist(*(np.argwhere(mask & ~binary_erosion(mask)) for mask in pair_of_slices))
        expected.append(1.5 * np.percentile([*apart.min(axis=0), *apart.min(axis=1)], 95))
    np.testing.assert_allclose(hd95(pair[0], pair[1], pixel_mm=1.5), expected, atol=1e-12)


def test_hd95_needs_two_borders():
    assert np.isnan(hd95(np.concatenate([EMPTY, FULL, EMPTY]), np.concatenate([FULL, EMPTY, EMPTY]))).all()


def test_lesions_counted_by_hand():
    truth = masks("##..#/....#/.....", "#..../.#.../..#..", "...../...../.....")
    predicted = masks("#.#../#.#../....#", "...../...../..#..", "#.#.#/...../.....")
    detected, missed, false = lesion_counts(predicted, truth)
    np.testing.assert_array_equal(detected, [1, 1, 0])  # corners join the second slice's diagonal
    np.testing.assert_array_equal(missed, [1, 0, 0])
    np.testing.assert_array_equal(false, [2, 0, 3])


def test_dice_by_size_is_the_mean_of_each_bin():
    def rectangle(height: int, width: int) -> np.ndarray:
        return np.pad(np.ones((1, height, width), dtype=bool), ((0, 0), (0, 128 - height), (0, 128 - width)))

    none, small, large = rectangle(0, 0), rectangle(5, 10), rectangle(40, 40)
    truth = np.concatenate([small, small, large, rectangle(3, 17), none])  # 50, 50, 1600 and 51 pixels
    predicted = np.concatenate([small, none, rectangle(20, 40), rectangle(3, 17), large])
    bins = dice_by_size(predicted, truth)
    assert [(bin_.name, bin_.count) for bin_ in bins] == [
        ("1-50", 2), ("51-200", 1), ("201-500", 0), ("501-1000", 0), ("over 1000", 1),
    ]  # fmt: skip
    np.testing.assert_allclose([bin_.dice for bin_ in bins], [0.5, 1, np.nan, np.nan, 2 / 3])
    assert lesion_area(np.ones((1, 256, 256), dtype=bool)).tolist() == [128 * 128]


@pytest.mark.parametrize("measure", [dice, confusion, hd95, lesion_counts, dice_by_size])
def test_incompatible_masks_are_refused(measure):
    with pytest.raises(EvaluationError, match="must match"):
        measure(EMPTY, FULL[:, :2])
    with pytest.raises(EvaluationError, match="boolean"):
        measure(EMPTY.astype(np.uint8), FULL)
    with pytest.raises(EvaluationError, match="slices, height, width"):
        lesion_area(EMPTY[0])


# ---- maps ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=60), SCORES, SCORES)
def test_average_precision_and_auc_equal_scikit_learn(pixels, lesion_score, other_score):
    scores, truth = map(np.array, zip(*pixels, (lesion_score, True), (other_score, False), strict=True))
    assert average_precision(scores, truth) == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert roc_auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-9)


@pytest.mark.parametrize("area", [average_precision, roc_auc])
def test_map_with_nan_is_refused(area):
    truth = np.array([True, False, False])
    for scores, lesions, message in (
        ([1.0, np.nan, 0.0], truth, "1 of 3 scores are not numbers"),
        ([1.0, 0.0], truth, "must match"),
        ([1.0, 0.5, 0.0], truth.astype(int), "boolean"),
    ):
        with pytest.raises(EvaluationError, match=message):
            area(np.array(scores), lesions)


def test_foreground_thresholds_the_mean_over_channels():
    pixels = np.full((1, 2, 1, 4), -1, dtype=np.float32)
    pixels[0, :, 0, 1] = -0.95  # at the cut
    pixels[0, 1, 0, 2] = -0.88  # mean -0.94
    pixels[0, 1, 0, 3] = -0.92  # mean -0.96
    np.testing.assert_array_equal(foreground(pixels), [[[False, False, True, False]]])
