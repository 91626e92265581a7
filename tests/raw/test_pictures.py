"""Pictures of a study: orientation of the planes, lines where they belong."""

import io

import numpy as np
import pytest
from PIL import Image

from anofpdm.raw.register import Head
from anofpdm.raw.series_pictures import (
    BRAIN_COLOUR,
    EDGE_COLOUR,
    PIXEL_MM,
    SIDE,
    choose_planes,
    cut_planes,
    draw_series,
)
from anofpdm.scans.grid import Grid
from anofpdm.util.drawing import GAP
from tests import toys

AXIAL, CORONAL, SAGITTAL = 1, 4, 5


def ball_head(axes, spot=(20.0, 20.0, 20.0)):
    """A brain of 60 mm radius around the origin, with a bright spot to the right, front and top."""
    shape = (60, 60, 60)
    affine = toys.affine_of(axes, (3.0, 3.0, 3.0), shape=shape)
    brain = toys.ball(affine, shape, (0, 0, 0), 60)
    voxels = np.where(toys.ball(affine, shape, spot, 12), 200.0, np.where(brain, 100.0, 0)).astype(np.float32)
    return Head(voxels, brain, Grid.from_affine(shape, affine))


@pytest.mark.parametrize("axes", ["RAS", "LPS", "PIR", "ASL"])
def test_planes_are_seen_as_radiologists_do(axes):
    """Right is left, anterior is up; from the side, anterior is left."""
    planes = choose_planes(ball_head(axes))
    heights = [float(plane.affine[2, 3]) for plane in planes[:4]]
    assert heights == sorted(heights)
    for plane, spot in ((2, (20.0, 20.0, 12.0)), (CORONAL, (20.0, 0.0, 20.0)), (SAGITTAL, (0.0, 20.0, 20.0))):
        head = ball_head(axes, spot)
        image = cut_planes(head, planes)[0][plane]
        offset_mm = (np.mean(np.nonzero(image > 150), axis=1) - (SIDE - 1) / 2) * PIXEL_MM
        assert offset_mm == pytest.approx((-20, -20), abs=2)


def test_a_wrong_registration_is_visible_in_its_picture(drawn_texts):
    """Edges of the reference stay in place; the series and its outline move. The sides of every plane are marked."""
    head = ball_head("RAS")
    shifted = np.eye(4)
    shifted[0, 3] = 25.0  # the series is shown 25 mm further to the left of the patient
    sheet = np.array(Image.open(io.BytesIO(draw_series("t2", head, head, shifted))).convert("RGB"))
    tile = sheet[-GAP - SIDE : -GAP, GAP + AXIAL * (SIDE + GAP) :][:, :SIDE]
    grey = (tile[..., 0] == tile[..., 1]) & (tile[..., 0] > 60)
    shown = [grey, *((tile == colour).all(axis=2) for colour in (BRAIN_COLOUR, EDGE_COLOUR))]
    series, brain, edges = ((np.nonzero(mask)[1] - (SIDE - 1) / 2) * PIXEL_MM for mask in shown)
    assert brain.mean() == pytest.approx(0, abs=4)
    assert (edges.min(), edges.max()) == pytest.approx((-60, 60), abs=8)
    assert series.mean() == pytest.approx(25, abs=4)
    assert drawn_texts == [*["R", "L"] * SAGITTAL, "A", "P", "t2"]
