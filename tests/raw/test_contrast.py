"""Contrasts by the image: measures that do not depend on scale and position, assignments that are refused in doubt."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from anofpdm.errors import ScanError
from anofpdm.raw.contrast import CONTRASTS, SURE, assign_series, describe_series, measure_contrast
from anofpdm.raw.unnamed_series import assign_modalities
from anofpdm.scans.modalities import InputModalities
from tests.raw.toy_studies import moved_head, random_rigid, thick_grid

SHAPE, SPACING = (100, 110, 50), (2.0, 2.0, 3.0)
LIKELY = {name: {other: 0.0 if other == name else -6.0 for other in CONTRASTS} for name in CONTRASTS}


PAIR = ("flair", "t2")


def test_measures_do_not_depend_on_scale_and_position():
    movement = random_rigid(np.random.default_rng(0), 10.0, 30.0)
    head, moved = (moved_head("t2", matrix, thick_grid(matrix, SPACING, SHAPE)) for matrix in (np.eye(4), movement))
    measured = measure_contrast(head)
    np.testing.assert_allclose(measure_contrast(replace(head, voxels=37 * head.voxels)), measured, atol=1e-4)
    np.testing.assert_allclose(measure_contrast(moved), measured, atol=0.15)
    with pytest.raises(ScanError, match="too few voxels"):
        measure_contrast(replace(head, brain=np.zeros_like(head.brain)))


def test_probability_by_enumeration():
    """Three series, of which two are FLAIR and T2; the study is known to have the other contrasts."""
    series = {"a": {"flair": -1.0, "t2": -3.0}, "b": {"flair": -2.0, "t2": -1.5}, "c": {"flair": -9.0, "t2": -8.0}}
    scores = [series[a]["flair"] + series[b]["t2"] for a, b in itertools.permutations(series, 2)]  # third: constant
    assigned, probability = assign_series(series, PAIR, known=("t1", "t1ce"))
    assert assigned == {"flair": "a", "t2": "b"}
    assert probability == pytest.approx(np.exp(-2.5) / np.exp(scores).sum())


def test_doubtful_and_impossible_assignments_are_not_sure():
    assert assign_series({"a": LIKELY["flair"], "b": LIKELY["t2"], "c": LIKELY["t2"]}, PAIR)[1] < 0.6
    # If there is a FLAIR at all, it is the first; but rather there is none.
    assert assign_series({"a": LIKELY["t1"], "b": LIKELY["t2"]}, PAIR)[1] == 0
    for given, wanted, known in (("a", PAIR, ()), ("ab", ("flair", "pd"), ()), ("ab", ("flair",), ("flair",))):
        assert assign_series(dict.fromkeys(given, LIKELY["flair"]), wanted, known) == ({}, 0.0)


def test_a_series_alone_has_to_be_clear():
    assert assign_series({"a": LIKELY["t1"]}, ("t1",))[1] >= SURE
    _, doubtful = assign_series({"a": LIKELY["t1"] | {"t1ce": -1.0}}, ("t1",))
    assert doubtful == pytest.approx(1 / (1 + np.exp(-1) + 2 * np.exp(-6) + np.exp(-20)))
    strange = dict.fromkeys(CONTRASTS, -40.0) | {"t1": -30.0}  # far from every contrast, though T1 is the nearest
    assert assign_series({"a": strange}, ("t1",))[1] < SURE
    assert describe_series({"a": strange, "b": LIKELY["t2"]}) == "a: none of them, b: t2"


def test_as_many_optional_series_are_assigned_as_are_clear():
    inputs, either = InputModalities(("flair",), ("t1", "t1ce", "t2")), {**LIKELY["t1"], "t1ce": -0.1}
    assert assign_modalities(LIKELY, inputs) == {name: name for name in inputs.names}
    doubtful = {"a": either, "b": LIKELY["flair"], "c": either, "d": LIKELY["t2"]}
    assert assign_modalities(doubtful, inputs) == {"flair": "b", "t2": "d"}
    assert assign_modalities({"a": LIKELY["t1"], "b": LIKELY["t2"]}, inputs) == {}
