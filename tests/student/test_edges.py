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


def test_small_lesions_keep_their_edges():
    mask = np.zeros((64, 64), np.uint8)
    mask[30:36, 30:36] = 255
    np.testing.assert_array_equal(move_edge(mask, np.random.default_rng(0).random((1, 64, 64))), mask)


def test_a_lesion_without_contrast_keeps_its_edge():
    image, _, distance = blurred_disc(0)
    mask = np.where(distance < 14, 255, 0).astype(np.uint8)
    np.testing.assert_array_equal(move_edge(mask, image), mask)


def test_many_slices_in_threads_are_as_each_alone():
    images, masks = [], []
    for radius in (0, 5, 11, 16) * 40:
        image, _, distance = blurred_disc(1)
        images.append(image)
        masks.append(np.where(distance < radius, 255, 0).astype(np.uint8))
    stack, pixels = np.stack(masks), np.stack(images)
    moved = move_edges(stack, lambda rows: pixels[rows])
    np.testing.assert_array_equal(moved[:4], [move_edge(*one) for one in zip(masks[:4], images[:4], strict=True)])
    np.testing.assert_array_equal(moved[-4:], moved[:4])
