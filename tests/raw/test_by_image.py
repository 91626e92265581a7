"""Which series are assigned: all that are needed, and as many optional ones as the images give."""

import pytest

from anofpdm.errors import ScanError
from anofpdm.raw import unnamed_series
from anofpdm.raw.unnamed_series import assign_volumes
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import Volume
from tests.raw.test_contrast import LIKELY, head_of

INPUTS = InputModalities(("flair",), ("t1", "t1ce", "t2"))
EITHER_T1 = {**LIKELY["t1"], "t1ce": -0.1}


def assign(monkeypatch, tmp_path, likelihoods):
    """Series that look as given."""
    head = head_of("t2")
    volumes = {name: Volume(tmp_path / name, head.voxels, head.grid) for name in likelihoods}
    looks = iter(likelihoods.values())
    monkeypatch.setattr(unnamed_series, "BrainFinder", lambda: lambda _: head.brain)
    monkeypatch.setattr(unnamed_series, "measure_contrast", lambda _: next(looks))
    monkeypatch.setattr(unnamed_series, "compare_contrasts", lambda look: look)
    return assign_volumes(volumes, INPUTS, (), "name them").series


def test_all_optional_series_where_they_are_clear(monkeypatch, tmp_path):
    given = {f"{name}.nii": LIKELY[name] for name in ("t2", "t1ce", "t1", "flair")}
    assert assign(monkeypatch, tmp_path, given) == {name: f"{name}.nii" for name in INPUTS.names}


def test_optional_series_that_are_not_clear_are_left_out(monkeypatch, tmp_path):
    given = {"a": EITHER_T1, "b": LIKELY["flair"], "c": EITHER_T1, "d": LIKELY["t2"]}
    assert assign(monkeypatch, tmp_path, given) == {"flair": "b", "t2": "d"}


def test_a_study_without_the_needed_series_is_refused(monkeypatch, tmp_path):
    with pytest.raises(ScanError, match=r"neither names nor images give flair.*name them"):
        assign(monkeypatch, tmp_path, {"a": LIKELY["t1"], "b": LIKELY["t2"]})
