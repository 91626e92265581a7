"""Pictures of slices: which side is which, how slices are counted, and the true lesion."""

import io

import numpy as np
import pytest
from PIL import Image

from anofpdm.report import overview
from anofpdm.util import drawing
from tests.report.conftest import segmented

GAP, TILE, TOP = overview.GAP, overview.TILE, overview.HEADING + overview.CAPTION


def tiles(png):
    """[2, columns] of images: slices above their maps."""
    sheet = Image.open(io.BytesIO(png))
    lefts, tops = (GAP + np.arange(overview.COLUMNS) * (TILE + GAP)).tolist(), (TOP, TOP + TILE + GAP)
    return [[sheet.crop((left, top, left + TILE, top + TILE)) for left in lefts] for top in tops]


@pytest.mark.parametrize("axes", ["LPS", "RAS", "LAS", "RPS"])
def test_the_lesion_of_the_right_side_is_beside_the_letter_r(axes):
    result = segmented(axes=axes)  # the lesion's centre is 14 mm to the right of the middle, by the affine
    assert result.findings[0].centre_mm[0] == pytest.approx(14, abs=1.5)
    columns = np.flatnonzero(result.decisions.masks.any(axis=(0, 1)))
    assert columns.max() < result.decisions.masks.shape[-1] / 2
    marked = tiles(result.overview("p"))
    result.grid.header["sform_code"] = result.grid.header["qform_code"] = 0
    plain = tiles(result.overview("p"))
    for row in (0, 1):
        expected = drawing.mark_sides(plain[row][0].copy(), "R", "L")
        np.testing.assert_array_equal(marked[row][0], expected)
        assert not np.array_equal(expected, plain[row][0])  # no letters without an orientation


def test_slices_and_findings_are_counted(monkeypatch):
    texts = []
    monkeypatch.setattr(overview.ImageDraw, "Draw", lambda image: Recorder(image, texts))
    segmented(first=3).overview("p")
    assert any(text.endswith("in 1 finding") for text in texts)
    assert {text.split(",")[0] for text in texts} >= {"slice 7", "slice 9"}
    assert all(text.split(",")[0] != "slice 3" for text in texts)  # the lowest is the fourth of the scan


class Recorder:
    def __init__(self, image, texts):
        self.pen, self.texts = original(image), texts

    def text(self, at, text, *args, **options):
        self.texts.append(text)
        self.pen.text(at, text, *args, **options)

    def __getattr__(self, name):
        return getattr(self.pen, name)


original = overview.ImageDraw.Draw


def test_the_true_lesion_is_outlined():
    result = segmented()
    truth = np.zeros_like(result.decisions.masks)
    truth[:, 18:26, 18:26] = True
    colours = {colour for _, colour in tiles(result.overview("p", truth))[0][0].getcolors(TILE**2)}
    assert drawing.BLUE in colours
    assert drawing.BLUE not in {colour for _, colour in tiles(result.overview("p"))[0][0].getcolors(TILE**2)}
