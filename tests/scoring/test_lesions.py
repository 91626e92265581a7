"""Against explicit distances of pixels, and against lesions counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from scipy.ndimage import binary_erosion
from scipy.spatial.distance import cdist

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.lesions import dice_by_size, hd95, lesion_area, lesion_counts

EMPTY = np.zeros((1, 6, 7), dtype=bool)
FULL = ~EMPTY


def masks(*slices: str) -> np.ndarray:
    """Rows of a slice parted by '/', pixels '#' or '.'."""
    return np.array([[[pixel == "#" for pixel in row] for row in slice_.split("/")] for slice_ in slices])


def rectangle(size: int, height: int, width: int) -> np.ndarray:
    mask = np.zeros((1, size, size), dtype=bool)
    mask[:, :height, :width] = True
    return mask


# ---- distance --------------------------------------------------------------------------------------------------------


def brute_force(*pair: np.ndarray) -> float:
    apart = cdist(*(np.argwhere(mask & ~binary_erosion(mask)) for mask in pair))
    return float(np.percentile([*apart.min(axis=0), *apart.min(axis=1)], 95))


@given(arrays(bool, (2, 3, 7, 6)))
def test_hd95_equals_explicit_pairwise_distances(pair):
    pair[:, :, 3, 3] = True  # none is empty
    expected = [1.5 * brute_force(*masks) for masks in zip(*pair, strict=True)]
    np.testing.assert_allclose(hd95(pair[0], pair[1], pixel_mm=1.5), expected, atol=1e-12)


def test_hd95_needs_two_borders():
    assert np.isnan(hd95(np.concatenate([EMPTY, FULL, EMPTY]), np.concatenate([FULL, EMPTY, EMPTY]))).all()


# ---- lesions found ---------------------------------------------------------------------------------------------------


def test_lesions_counted_by_hand():
    truth = masks("##..#/....#/.....", "#..../.#.../..#..", "...../...../.....")
    predicted = masks("#.#../#.#../....#", "...../...../..#..", "#.#.#/...../.....")
    counts = lesion_counts(predicted, truth)
    np.testing.assert_array_equal(counts.detected, [1, 1, 0])  # corners join the second slice's diagonal
    np.testing.assert_array_equal(counts.missed, [1, 0, 0])
    np.testing.assert_array_equal(counts.false, [2, 0, 3])
    assert counts.f1 == 2 * 2 / (2 * 2 + 5 + 1)


def test_f1_of_empty_masks_is_undefined():
    assert np.isnan(lesion_counts(EMPTY, EMPTY).f1)
    assert lesion_counts(FULL, EMPTY).f1 == 0
    assert lesion_counts(EMPTY, FULL).f1 == 0
    assert lesion_counts(FULL, FULL).f1 == 1


# ---- by size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("smallest", "largest", "name"),
    [(1, 50, "1-50"), (51, 200, "51-200"), (201, 500, "201-500"), (501, 1000, "501-1000"), (1001, 16384, "over 1000")],
)
def test_size_bins(smallest, largest, name):
    truth = np.stack([np.arange(128 * 128) < area for area in (smallest, largest)]).reshape(2, 128, 128)
    assert [(bin_.name, bin_.count) for bin_ in dice_by_size(truth, truth) if bin_.count] == [(name, 2)]


def test_dice_by_size_is_the_mean_of_each_bin():
    none = np.zeros((1, 128, 128), dtype=bool)
    small, large = rectangle(128, 4, 10), rectangle(128, 40, 40)
    truth = np.concatenate([small, small, large, none])
    predicted = np.concatenate([small, none, rectangle(128, 20, 40), large])
    bins = dice_by_size(predicted, truth)
    assert [bin_.count for bin_ in bins] == [2, 0, 0, 0, 1]  # the slice without a lesion is in none
    assert lesion_area(rectangle(256, 10, 20)).tolist() == [50]  # as at 128 x 128
    np.testing.assert_allclose([bin_.dice for bin_ in bins], [0.5, np.nan, np.nan, np.nan, 2 / 3])


def test_incompatible_masks_are_refused():
    for measure in (hd95, lesion_counts, dice_by_size):
        with pytest.raises(EvaluationError, match="must match"):
            measure(EMPTY, FULL[:, :2])
    with pytest.raises(EvaluationError, match="slices, height, width"):
        lesion_area(EMPTY[0])
