"""Pictures of slices: which side is which, how slices are counted, and the true lesion."""

import numpy as np
import pytest
from PIL import Image

from anofpdm.errors import ScanWarning
from anofpdm.segment.segment_scan import rows_to_explain
from anofpdm.util.drawing import annotate
from tests.report.conftest import segmented


def test_the_first_letter_is_on_the_left_and_the_second_on_the_right():
    tile = Image.new("RGB", (100, 100))
    assert np.asarray(annotate(tile, {}, "R"))[:, :50].any()
    assert not np.asarray(annotate(tile, {}, "R"))[:, 50:].any()
    assert np.asarray(annotate(tile, {}, "RL"))[:, 50:].any()


@pytest.mark.parametrize("axes", ["LPS", "RAS", "LAS", "RPS"])
def test_the_lesion_of_the_right_side_is_beside_the_letter_r(axes, drawn_texts):
    result = segmented(axes=axes)  # the lesion's centre is 14 mm to the right of the middle, by the affine
    assert result.findings[0].centre_mm[0] == pytest.approx(14, abs=1.5)
    columns = np.flatnonzero(result.decisions.masks.any(axis=(0, 1)))
    assert columns.max() < result.decisions.masks.shape[-1] / 2
    result.overview("p")
    letters = [text for text in drawn_texts if text in ("R", "L")]
    assert letters == ["R", "L"] * (len(letters) // 2) != []
    drawn_texts.clear()
    result.grid.header["sform_code"] = result.grid.header["qform_code"] = 0
    result.overview("p")
    assert not {"R", "L"} & set(drawn_texts)  # no letters without an orientation


def test_slices_and_findings_are_counted(drawn_texts):
    result = segmented(first=3)
    result.overview("p")
    assert any(text.endswith("in 1 finding") for text in drawn_texts)
    shown = {int(text.split(",")[0].removeprefix("slice ")) for text in drawn_texts if text.startswith("slice ")}
    assert shown == set((3 + 1 + np.flatnonzero(result.decisions.masks.any(axis=(1, 2)))).tolist())  # from 1


def test_slices_to_explain_are_counted_as_pictures_count():
    indices = np.arange(3, 12)
    assert rows_to_explain((4, 12), indices, "p").tolist() == [0, 8]
    with pytest.warns(ScanWarning, match=r"no slice 3 to explain; slices 4 to 12 were analysed \(counted from 1\)"):
        assert rows_to_explain((3, 4), indices, "p").tolist() == [0]
