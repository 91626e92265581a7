"""Edges of pseudo-labels, on images whose lesion is known."""

import numpy as np
import pytest
from scipy import ndimage

from anofpdm.student.edges import move_edge, move_edges
from tests import toys


def blurred_disc(sign, side=128):
    """A disc in a brain, bright or dark, with noise; the disc, and the distance from its centre."""
    rows, columns = np.mgrid[: 128 : 1j * side, : 128 : 1j * side]
    distance = np.hypot(rows - 60, columns - 70)
    brain, lesion = np.hypot(rows - 64, columns - 64) < 55, distance < 14
    image = np.where(brain, 0.0, -1.0) + sign * 0.5 * ndimage.gaussian_filter(lesion.astype(float), side / 128)
    image += brain * np.random.default_rng(0).normal(0, 0.05, image.shape)
    return image[None], lesion, distance


@pytest.mark.parametrize("side", [128, 64])
@pytest.mark.parametrize(("radius", "sign"), [(11, 1), (16, 1), (12, -1)])
def test_edges_move_to_where_the_image_has_them(radius, sign, side):
    image, lesion, distance = blurred_disc(sign, side)
    mask = np.where(distance < radius, 255, 0).astype(np.uint8)
    moved = move_edge(mask, image) > 127
    assert toys.dice(mask > 127, lesion) < 0.9
    assert toys.dice(moved, lesion) > (0.97 if side == 128 else 0.95)


@pytest.mark.parametrize(("sign", "radius"), [(1, 6), (0, 14)])
def test_small_lesions_and_those_without_contrast_keep_their_edges(sign, radius):
    image, _, distance = blurred_disc(sign)
    mask = np.where(distance < radius, 255, 0).astype(np.uint8)
    np.testing.assert_array_equal(move_edge(mask, image), mask)


def test_many_slices_in_threads_are_as_each_alone():
    image, _, distance = blurred_disc(1)
    masks = np.stack([np.where(distance < radius, 255, 0).astype(np.uint8) for radius in (0, 5, 11, 16)])
    moved = move_edges(np.tile(masks, (40, 1, 1)), lambda rows: np.stack([image] * len(rows)))
    np.testing.assert_array_equal(moved, np.tile([move_edge(mask, image) for mask in masks], (40, 1, 1)))
