"""Pictures of a study: orientation of the planes, lines where they belong."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from anofpdm.raw.register import Head
from anofpdm.raw.series_pictures import (
    BRAIN_COLOUR,
    EDGE_COLOUR,
    GAP,
    HEADING,
    PIXEL_MM,
    SIDE,
    choose_planes,
    cut_planes,
    draw_registration,
    find_edges,
)
from anofpdm.scans.grid import Grid
from tests import toys

AXES = ("RAS", "LPS", "PIR", "ASL")
AXIAL, CORONAL, SAGITTAL = 1, 4, 5


def ball_head(axes, spot=(20.0, 20.0, 20.0)):
    """A brain of 60 mm radius around the origin, with a bright spot to the right, front and top."""
    shape = (60, 60, 60)
    affine = toys.affine_of(axes, (3.0, 3.0, 3.0), shape=shape)
    brain = toys.ball(affine, shape, (0, 0, 0), 60)
    voxels = np.where(toys.ball(affine, shape, spot, 12), 200.0, np.where(brain, 100.0, 0)).astype(np.float32)
    return Head(voxels, brain, Grid.from_affine(shape, affine))


def spot_offset(image):
    """Columns and rows of the bright spot from the centre of a plane, in millimetres."""
    rows, columns = np.nonzero(image > 150)
    return (columns.mean() - (SIDE - 1) / 2) * PIXEL_MM, (rows.mean() - (SIDE - 1) / 2) * PIXEL_MM


@pytest.mark.parametrize("axes", AXES)
def test_planes_are_seen_as_radiologists_do(axes):
    head = ball_head(axes, spot=(20.0, 20.0, 12.0))
    images = cut_planes(head.voxels, head.grid, choose_planes(head), np.eye(4))
    assert spot_offset(images[2]) == pytest.approx((-20, -20), abs=2)  # right is left, anterior is up
    planes = choose_planes(head)
    heights = [float(plane.affine[2, 3]) for plane in planes[:4]]
    assert heights == sorted(heights)
    low = ball_head(axes, spot=(20.0, 0.0, 20.0))
    assert spot_offset(cut_planes(low.voxels, low.grid, planes, np.eye(4))[CORONAL]) == pytest.approx((-20, -20), abs=2)
    middle = ball_head(axes, spot=(0.0, 20.0, 20.0))
    offset = spot_offset(cut_planes(middle.voxels, middle.grid, planes, np.eye(4))[SAGITTAL])
    assert offset == pytest.approx((-20, -20), abs=2)


def test_edges_are_where_the_image_changes():
    rows, columns = np.mgrid[:SIDE, :SIDE]
    radius = np.hypot(rows - 90, columns - 100)
    disc = np.where(radius < 50, 100.0, 0.0)[None].astype(np.float32)
    found = find_edges(disc, disc > 0)[0]
    assert found.sum() > 200
    assert np.abs(radius[found] - 50).max() < 2


def test_a_wrong_registration_is_visible_in_its_picture():
    """Edges of the reference stay in place; the series and its outline move."""
    head = ball_head("RAS")
    shifted = np.eye(4)
    shifted[0, 3] = 25.0  # the series is shown 25 mm further to the left of the patient
    sheet = np.array(Image.open(io.BytesIO(draw_registration("t2", head, head, shifted))).convert("RGB"))
    tile = sheet[HEADING : HEADING + SIDE, GAP + AXIAL * (SIDE + GAP) :][:, :SIDE]
    centre = (SIDE - 1) / 2
    blue = np.nonzero((tile == BRAIN_COLOUR).all(axis=2))[1]
    orange = np.nonzero((tile == EDGE_COLOUR).all(axis=2))[1]
    grey = np.nonzero((tile[..., 0] == tile[..., 1]) & (tile[..., 0] > 60))[1]
    assert blue.mean() == pytest.approx(centre, abs=3)
    assert (orange.min() - centre) * PIXEL_MM == pytest.approx(-60, abs=8)
    assert (orange.max() - centre) * PIXEL_MM == pytest.approx(60, abs=8)
    assert (grey.mean() - centre) * PIXEL_MM == pytest.approx(25, abs=4)


def test_sides_are_marked_on_every_plane(monkeypatch):
    texts: list[str] = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda _pen, _at, text, *_args, **_options: texts.append(text))
    draw_registration("t2", ball_head("RAS"), ball_head("RAS"), np.eye(4))
    assert texts == ["t2", *["R", "L"] * SAGITTAL, "A", "P"]
