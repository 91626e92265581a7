"""Pictures of slices: which side is which, how slices are counted, and the true lesion."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from anofpdm.errors import ScanWarning
from anofpdm.report import overview
from anofpdm.segment.segment_scan import rows_to_explain
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
    texts: list[str] = []
    write = ImageDraw.ImageDraw.text

    def record(pen, at, text, *args, **options):
        texts.append(text)
        write(pen, at, text, *args, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", record)
    result = segmented(first=3)
    result.overview("p")
    assert any(text.endswith("in 1 finding") for text in texts)
    shown = {int(text.split(",")[0].removeprefix("slice ")) for text in texts if text.startswith("slice ")}
    assert shown == set((3 + 1 + np.flatnonzero(result.decisions.masks.any(axis=(1, 2)))).tolist())  # from 1


def test_slices_to_explain_are_counted_as_pictures_count():
    indices = np.arange(3, 12)
    assert rows_to_explain((4, 12), indices, "p").tolist() == [0, 8]
    with pytest.warns(ScanWarning, match=r"no slice 3 to explain; slices 4 to 12 were analysed \(counted from 1\)"):
        assert rows_to_explain((3, 4), indices, "p").tolist() == [0]
