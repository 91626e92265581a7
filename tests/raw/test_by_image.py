"""Which series are assigned: all that are needed, and as many optional ones as the images give."""

import pytest

from anofpdm.errors import ScanError
from anofpdm.raw import unnamed_series
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.unnamed_series import assign_volumes
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import Volume
from tests.raw.test_contrast import LIKELY, head_of

INPUTS = InputModalities(("flair",), ("t1", "t1ce", "t2"))
EITHER_T1 = {**LIKELY["t1"], "t1ce": -0.1}


@pytest.fixture
def assign(monkeypatch, tmp_path):
    """Assigns series that look as given."""
    head = head_of("t2")
    monkeypatch.setattr(BrainFinder, "__call__", lambda *_: head.brain)
    monkeypatch.setattr(unnamed_series, "compare_contrasts", lambda look: look)

    def assign(**likelihoods):
        looks = iter(likelihoods.values())
        monkeypatch.setattr(unnamed_series, "measure_contrast", lambda _: next(looks))
        volumes = {name: Volume(tmp_path / name, head.voxels, head.grid) for name in likelihoods}
        return assign_volumes(volumes, INPUTS, (), "name them")[0]

    return assign


def test_as_many_optional_series_are_assigned_as_are_clear(assign):
    every = {f"scan_{name}": LIKELY[name] for name in ("t2", "t1ce", "t1", "flair")}
    assert assign(**every) == {name: f"scan_{name}" for name in INPUTS.names}
    assert assign(a=EITHER_T1, b=LIKELY["flair"], c=EITHER_T1, d=LIKELY["t2"]) == {"flair": "b", "t2": "d"}


def test_a_study_without_the_needed_series_is_refused(assign):
    with pytest.raises(ScanError, match=r"neither names nor images give flair.*name them"):
        assign(a=LIKELY["t1"], b=LIKELY["t2"])
