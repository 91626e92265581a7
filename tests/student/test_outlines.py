"""Masks on a grid that is finer than the student's pixels, against discs whose edges are known."""

import numpy as np
import pytest
from anofpdm.student.outlines import outline_levels

from anofpdm.scans import AxialPlanes, Grid

SIZE, FINER = 32, 4  # the student's pixels, and voxels of the scan along the side of each
SHAPE = (SIZE * FINER, SIZE * FINER, 1)


def distances(centre, n, mm):
    """[n, n]: of the centres of pixels of this size, all around the same middle."""
    along = (np.arange(n) - (n - 1) / 2) * mm
    return np.hypot(along[:, None] - centre[0], along[None] - centre[1])


def native(slices):
    planes = AxialPlanes(Grid.from_affine(SHAPE, np.diag([-1.0, -1.0, 1.0, 1.0])), SIZE)
    assert planes.pixel_mm == FINER
    return planes.axial(planes.to_native(slices[None], [0]))[0] >= 0.5


def dice(a, b):
    return 2 * (a & b).sum() / (a.sum() + b.sum())


@pytest.mark.parametrize("centre", [(0.0, 0.0), (1.3, -0.7), (-2.0, 1.9), (0.5, 3.1)])
@pytest.mark.parametrize("slope", [0.3, 1.0])  # logits per mm
def test_a_disc_is_found_to_a_fraction_of_a_pixel(centre, slope):
    radius = 13.0
    raised = slope * (radius - distances(centre, SIZE, FINER))[None].astype(np.float32)
    levels = outline_levels(raised, raised >= 0)
    truth = distances(centre, SIZE * FINER, 1.0) <= radius
    found, by_pixels = native(levels[0]), native((raised >= 0)[0])
    assert dice(found, truth) > 0.98
    assert dice(found, truth) > dice(by_pixels, truth) + 0.025
    assert found.sum() == pytest.approx(truth.sum(), rel=0.03)  # linear interpolation makes discs smaller


def test_masks_of_pixels_are_the_same():
    rng = np.random.default_rng(1)
    raised = rng.normal(size=(5, SIZE, SIZE), scale=3).astype(np.float32)
    masks = (raised >= 0) & (rng.random(raised.shape) < 0.7)  # some are dropped
    masks[2] = False  # nothing is detected there
    levels = outline_levels(raised, masks)
    np.testing.assert_array_equal(levels >= 0.5, masks)
    assert levels.dtype == np.float32
    assert not levels[2].any()
    assert not levels[(raised >= 0) & ~masks].any()
    assert levels.min() == 0
    assert levels.max() == 1
