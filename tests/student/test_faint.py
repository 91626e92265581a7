"""Thresholds of faint lesions, on logits drawn by hand and against a search voxel by voxel."""

import numpy as np

from anofpdm.method.context import SlicePositions
from anofpdm.student.faint import LOWEST, lesion_peaks, lower_thresholds

NOTHING = -9.0


def logits(*regions):
    """Slices with squares: (first row, last row, logit)."""
    images = np.full((len(regions), 24, 24), NOTHING, np.float32)
    for image, squares in zip(images, regions, strict=True):
        for first, last, value in squares:
            image[first:last, first:last] = value
    return images


def along(count, scans=None):
    return SlicePositions(np.zeros(count) if scans is None else np.array(scans), 2.0 * np.arange(count))


def test_the_threshold_is_the_peak_of_the_lesion_minus_the_span_below_0_only():
    images = logits([(2, 8, 2.0), (3, 5, 3.0)], [(2, 8, -1.0)], [(2, 8, 7.0)])
    thresholds = lower_thresholds(images[:2], along(2), 5.0)
    assert set(thresholds[:, 2:8, 2:8].ravel()) == {-2.0}  # also in the slice whose own logits are below 0
    assert not thresholds[:, 9:].any()
    assert not lower_thresholds(images, along(3), 5.0).any()  # a lesion with a peak of 7 is connected


def test_no_lesion_is_lowered_that_stays_below_0_or_below_the_lowest_threshold():
    assert not lower_thresholds(logits([(2, 8, -0.1)]), along(1), 5.0).any()
    assert lower_thresholds(logits([(2, 8, 0.1)]), along(1), 5.0).min() == LOWEST


def test_without_a_span_thresholds_are_0():
    assert not lower_thresholds(logits([(2, 8, 1.0)]), along(1), None).any()


def test_lesions_of_other_scans_and_the_order_of_rows_do_not_matter():
    images = logits([(2, 8, 1.0)], [(2, 8, 2.0)], [(2, 8, 4.5)])
    apart = lower_thresholds(images, along(3, [0, 0, 1]), 5.0)
    assert [one.min() for one in apart] == [-3.0, -3.0, -0.5]
    order = np.array([2, 0, 1])
    positions = along(3, [0, 0, 1]).take(order)
    np.testing.assert_array_equal(lower_thresholds(images[order], positions, 5.0), apart[order])


def test_peaks_are_those_of_a_search_from_voxel_to_voxel():
    images = np.random.default_rng(0).normal(-5, 2, (4, 12, 12)).astype(np.float32)
    found = lesion_peaks(images)
    expected = np.full(images.shape, -np.inf, np.float32)
    for start in map(tuple, np.argwhere(images > LOWEST)):
        seen, front = {start}, [start]
        while front:
            z, y, x = front.pop()
            box = np.argwhere(images[max(z - 1, 0) : z + 2, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] > LOWEST)
            near = {tuple(one) for one in box + np.maximum([z - 1, y - 1, x - 1], 0)} - seen
            seen |= near
            front += near
        expected[start] = max(images[one] for one in seen)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 4
