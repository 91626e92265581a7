"""A series that is named as another contrast than its image shows."""

import numpy as np
import pytest

from anofpdm.errors import ScanError
from anofpdm.scans.raw.contrast import find_other_contrast
from anofpdm.scans.raw.place import warn_other_contrast
from anofpdm.scans.raw.register import Head
from tests.scans.raw.worlds import moved_head, thick_grid

GRID = ((2.0, 2.0, 5.0), (100, 112, 32))


@pytest.fixture(scope="module")
def heads():
    drawn = {name: moved_head(name, np.eye(4), thick_grid(np.eye(4), *GRID)) for name in ("flair", "t1", "t1ce", "t2")}
    return {name: Head(np.where(one.brain, one.voxels, 0), one.brain, one.grid) for name, one in drawn.items()}


def test_no_warning_under_its_own_name(heads):
    assert {name: find_other_contrast(head, name) for name, head in heads.items()} == dict.fromkeys(heads)
    assert find_other_contrast(heads["t1"], "t1ce") is None  # too similar
    assert find_other_contrast(heads["t2"], "adc") is None  # nothing is known of it


def test_mixed_up_series_are_reported(heads):
    with pytest.warns(match="scan: given as t2, but its image looks like flair; check that no files are mixed up"):
        warn_other_contrast(heads["flair"], "t2", "scan")
    with pytest.warns(match="given as flair, but its image looks like t2"):
        warn_other_contrast(heads["t2"], "flair", "scan")


def test_an_image_that_cannot_be_measured_gives_no_warning(heads, recwarn):
    one = heads["t2"]
    empty = Head(np.zeros_like(one.voxels), one.brain, one.grid)
    with pytest.raises(ScanError, match="too few voxels"):
        find_other_contrast(empty, "flair")
    warn_other_contrast(empty, "flair", "scan")
    assert not list(recwarn)
