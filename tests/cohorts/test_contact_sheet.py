"""The contact sheet: how slices are counted, and which side is which."""

import numpy as np
import pytest
from PIL import Image

from anofpdm.cohorts import contact_sheet
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from tests import toys


@pytest.mark.parametrize("oriented", [True, False])
def test_slices_are_counted_from_1_and_sides_marked_where_they_are_known(tmp_path, drawn_texts, oriented):
    lesion = toys.ball(toys.affine_of(shape=(24, 24, 20)), (24, 24, 20), (3, -2, 1), 4).astype(np.uint8)
    codes = (1, 1) if oriented else (0, 0)
    for number in range(2):
        toys.save(tmp_path / "scans" / f"p{number}_flair.nii.gz", toys.head(seed=number), codes=codes)
        toys.save(tmp_path / "scans" / f"p{number}_seg.nii.gz", lesion, codes=codes)
    cohort = prepare(plan_cohort("brats21", tmp_path / "scans", size=16), tmp_path / "cohort")
    sheet = np.array(Image.open(tmp_path / "cohort" / "contact_sheet.png").convert("RGB")).astype(int)
    assert (sheet[..., 0] - sheet[..., 2] > 100).sum() > 100  # red outlines
    captions = [text.split(",")[0] for text in drawn_texts if "\n" in text]
    rows = contact_sheet.choose_rows(cohort, contact_sheet.TILES_PER_ROW * contact_sheet.MAX_ROWS)
    assert captions == [f"{cohort.scans[row]}\nslice {cohort.indices[row] + 1}" for row in rows]
    assert drawn_texts.count("R") == drawn_texts.count("L") == (len(rows) if oriented else 0)
    assert [cohort.oriented(row) for row in range(len(cohort))] == [oriented] * len(cohort)
    assert any("no orientation" in note for note in cohort.notes) != oriented
