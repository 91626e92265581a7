"""Small components that continue a lesion, on masks drawn by hand."""

import numpy as np
from anofpdm.student.linked import draw_masks, drop_unlinked

from anofpdm.method.context import SlicePositions

LARGE, SMALL, ELSEWHERE = np.s_[10:20, 10:20], np.s_[12:15, 12:15], np.s_[30:33, 30:33]


def slices(*regions):
    masks = np.zeros((len(regions), 40, 40), bool)
    for mask, places in zip(masks, regions, strict=True):
        for place in places:
            mask[place] = True
    return masks


def along(count, scans=None):
    return SlicePositions(np.zeros(count) if scans is None else np.array(scans), 2.0 * np.arange(count))


def test_small_components_are_kept_where_they_continue_a_lesion():
    above = slices([SMALL], [SMALL], [LARGE, ELSEWHERE], [SMALL, ELSEWHERE], [], [SMALL])
    kept, has_large = drop_unlinked(above, 40, along(6))
    np.testing.assert_array_equal(kept, slices([SMALL], [SMALL], [LARGE], [SMALL], [], []))
    assert has_large.tolist() == [False, False, True, False, False, False]


def test_the_order_of_rows_does_not_matter_and_scans_are_apart():
    above = slices([SMALL], [SMALL], [LARGE, ELSEWHERE], [SMALL], [SMALL])
    positions = along(5, scans=[0, 0, 0, 1, 1])  # the last two are beside a lesion of another scan
    expected = slices([SMALL], [SMALL], [LARGE], [], [])
    order = np.random.default_rng(0).permutation(5)
    shuffled = SlicePositions(positions.scans[order], positions.heights_mm[order])
    np.testing.assert_array_equal(drop_unlinked(above[order], 40, shuffled)[0], expected[order])


def test_unrelated_slices_keep_large_components_only():
    above = slices([SMALL], [LARGE, ELSEWHERE])
    np.testing.assert_array_equal(drop_unlinked(above, 40, SlicePositions.unrelated(2))[0], slices([], [LARGE]))


def test_small_components_alone_must_be_detected_clearly():
    above = slices([SMALL], [LARGE], [SMALL], [LARGE])
    drawn, masks = draw_masks(above, np.array([0.4, 0.1, 0.6, -0.1]), 40 * 128**2 // 40**2, along(4))
    np.testing.assert_array_equal(drawn, above)
    np.testing.assert_array_equal(masks.any(axis=(1, 2)), [False, True, True, False])
