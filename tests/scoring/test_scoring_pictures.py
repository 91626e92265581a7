"""Pictures of scored scans: how slices are counted, and which side is which."""

import numpy as np
import pytest

from anofpdm.scoring.pairs import Pair
from anofpdm.scoring.scores_page import draw_scan
from tests import toys

SHAPE = (24, 24, 20)


@pytest.mark.parametrize("oriented", [True, False])
def test_slices_are_counted_from_1_and_sides_marked_where_they_are_known(tmp_path, drawn_texts, oriented):
    mask = np.zeros(SHAPE, np.uint8)
    mask[5:9, 5:9, 7] = 1  # LPS: the third axis is inferior to superior
    code = int(oriented)
    paths = [toys.save(tmp_path / name, mask, codes=(code, code)) for name in ("mask.nii.gz", "seg.nii.gz")]
    draw_scan(Pair("p", "p", *paths), (None, None), None)
    assert drawn_texts == (["R", "L", "slice 8"] if oriented else ["slice 8"])
