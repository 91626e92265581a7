"""Small components of a mask are kept where they continue a lesion of an adjacent slice.

At the ends of a lesion its cross-section is small. A small component on its own is mostly noise.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from scipy import ndimage

from anofpdm.method.context import SlicePositions
from anofpdm.method.mask import EIGHT_NEIGHBOURS, smallest_pixels

CLEAR = 0.5  # score of the detector from which a slice with small components alone is given a mask


def draw_masks(
    above: np.ndarray, score: np.ndarray, smallest: int, positions: SlicePositions
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels above the threshold [n, H, W] and the detector's scores [n] -> masks of slices that are known to be
    unhealthy, and masks that are empty where none is detected, both [n, H, W].

    Many slices beside a lesion have a small component that continues it: those must be detected clearly.
    """
    drawn, has_large = drop_unlinked(above, smallest_pixels(above.shape[1:], smallest), positions)
    shown = (score >= 0) & (has_large | (score >= CLEAR))
    return drawn, drawn & shown[:, None, None]


def drop_unlinked(above: np.ndarray, limit: int, positions: SlicePositions) -> tuple[np.ndarray, np.ndarray]:
    """bool [n, H, W] without components of `limit` pixels or fewer, unless they overlap a kept component of an adjacent
    slice of the scan; and bool [n], whether a slice has a larger one."""
    components = [ndimage.label(one, EIGHT_NEIGHBOURS)[0] for one in above]
    keep = [np.bincount(one.ravel()) > limit for one in components]  # by number of the component
    for one in keep:
        one[0] = False  # the background
    kept = np.stack([chosen[one] for chosen, one in zip(keep, components, strict=True)])
    has_large: np.ndarray = np.any(kept, axis=(1, 2))
    for row, following in adjacent_rows(positions):
        linked = np.unique(components[following][kept[row]])
        linked = linked[linked > 0]
        if not keep[following][linked].all():
            keep[following][linked] = True
            kept[following] = keep[following][components[following]]
    return kept, has_large


def adjacent_rows(positions: SlicePositions) -> Iterator[tuple[int, int]]:
    """Each slice and the next of its scan: from the lowest to the highest, then back."""
    order = np.lexsort((positions.heights_mm, positions.scans))
    for rows in (order, order[::-1]):
        for row, following in pairwise(rows):
            if positions.scans[row] == positions.scans[following]:
                yield int(row), int(following)
