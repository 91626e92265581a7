"""Scores of lesions in slices against explicit distances, and against lesions counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from scipy.ndimage import binary_erosion
from scipy.spatial.distance import cdist

from anofpdm.errors import EvaluationError
from anofpdm.study.comparison.slice_lesions import dice_by_size, hd95, lesion_area, lesion_counts
from tests.scoring.test_slice_scores import masks


@given(arrays(bool, (2, 3, 7, 6)))
def test_hd95_equals_explicit_pairwise_distances(pair):
    pair[:, :, 3, 3] = True  # none is empty
    expected = []
    for pair_of_slices in zip(*pair, strict=True):
        apart = cdist(*(np.argwhere(mask & ~binary_erosion(mask)) for mask in pair_of_slices))
        expected.append(1.5 * np.percentile([*apart.min(axis=0), *apart.min(axis=1)], 95))
    np.testing.assert_allclose(hd95(pair[0], pair[1], pixel_mm=1.5), expected, atol=1e-12)


def test_hd95_needs_two_borders():
    empty = masks("../..", "##/##", "../..")
    assert np.isnan(hd95(empty, empty[[1, 0, 2]])).all()


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


@pytest.mark.parametrize("measure", [hd95, lesion_counts, dice_by_size])
def test_incompatible_masks_are_refused(measure):
    mask = masks("#./..")
    with pytest.raises(EvaluationError, match="must match"):
        measure(mask, mask[:, :1])
    with pytest.raises(EvaluationError, match="slices, height, width"):
        lesion_area(mask[0])
