"""Contrasts by the image: measures that do not depend on scale and position, assignments that are refused in doubt."""

import numpy as np
import pytest

from anofpdm.errors import ScanError
from anofpdm.raw.contrast import CONTRASTS, assign_series, compare_contrasts, describe_series, measure_contrast
from anofpdm.raw.register import Head
from tests.raw.worlds import moved_head, random_rigid, thick_grid

SHAPE, SPACING = (100, 110, 50), (2.0, 2.0, 3.0)
LIKELY = {name: {other: 0.0 if other == name else -6.0 for other in CONTRASTS} for name in CONTRASTS}


def head_of(contrast, matrix=None, seed=3):
    matrix = np.eye(4) if matrix is None else matrix
    return moved_head(contrast, matrix, thick_grid(matrix, SPACING, SHAPE), seed)


def test_measures_do_not_depend_on_scale_and_position():
    head = head_of("t2")
    measured = measure_contrast(head)
    scaled = Head(37 * head.voxels, head.brain, head.grid)
    np.testing.assert_allclose(measure_contrast(scaled), measured, atol=1e-4)
    movement = random_rigid(np.random.default_rng(0), 10.0, 30.0)
    np.testing.assert_allclose(measure_contrast(head_of("t2", movement)), measured, atol=0.15)


def test_fluid_is_bright_in_t2_only():
    brightest = {name: measure_contrast(head_of(name))[6] for name in CONTRASTS}  # in the middle of the brain
    assert max(brightest, key=brightest.__getitem__) == "t2"


def test_hardly_any_brain_is_refused():
    head = head_of("t2")
    with pytest.raises(ScanError, match="too few voxels"):
        measure_contrast(Head(head.voxels, np.zeros_like(head.brain), head.grid))


PAIR = ("flair", "t2")


@pytest.mark.parametrize("seed", [4, 5])
@pytest.mark.parametrize("given", [PAIR, ("t1", "flair", "t2"), CONTRASTS])
def test_the_series_of_a_phantom_are_told_apart(given, seed):
    series = {f"series {name}": compare_contrasts(measure_contrast(head_of(name, seed=seed))) for name in given}
    found = assign_series(series, PAIR)
    assert found is not None
    assert found.sure
    assert found.series == {name: f"series {name}" for name in PAIR}
    every = assign_series(series, given)  # T1 before and after contrast agent differ little: right, but not sure
    assert every is not None
    assert every.series == {name: f"series {name}" for name in given}


def test_probability_by_enumeration():
    """Three series, of which two are FLAIR and T2; the study is known to have the other contrasts."""
    series = {"a": {"flair": -1.0, "t2": -3.0}, "b": {"flair": -2.0, "t2": -1.5}, "c": {"flair": -9.0, "t2": -8.0}}
    pairs = [(one, other) for one in series for other in series if one != other]
    scores = {(one, other): series[one]["flair"] + series[other]["t2"] for one, other in pairs}  # the third: constant
    found = assign_series(series, ("flair", "t2"), known=("t1", "t1ce"))
    assert found is not None
    assert found.series == {"flair": "a", "t2": "b"}
    assert found.probability == pytest.approx(np.exp(-2.5) / np.exp(list(scores.values())).sum())
    assert found.plausible
    assert not found.sure


def test_doubtful_assignments_are_not_sure():
    two_t2 = assign_series({"a": LIKELY["flair"], "b": LIKELY["t2"], "c": LIKELY["t2"]}, ("flair", "t2"))
    assert two_t2 is not None
    assert two_t2.probability < 0.6
    no_flair = assign_series({"a": LIKELY["t1"], "b": LIKELY["t2"]}, ("flair", "t2"))
    assert no_flair is not None
    assert no_flair.probability > 0.95  # if there is a FLAIR at all, it is the first
    assert not no_flair.plausible
    assert not no_flair.sure


def test_a_series_alone_has_to_be_clear():
    clear = assign_series({"a": LIKELY["t1"]}, ("t1",))
    assert clear is not None
    assert clear.sure
    doubtful = assign_series({"a": LIKELY["t1"] | {"t1ce": -1.0}}, ("t1",))
    assert doubtful is not None
    assert doubtful.probability == pytest.approx(1 / (1 + np.exp(-1) + 2 * np.exp(-6) + np.exp(-20)))
    strange = dict.fromkeys(CONTRASTS, -40.0) | {"t1": -30.0}  # far from every contrast, though T1 is the nearest
    unlike = assign_series({"a": strange}, ("t1",))
    assert unlike is not None
    assert not unlike.sure
    assert describe_series({"a": strange, "b": LIKELY["t2"]}) == "a: none of them, b: t2"


def test_impossible_assignments():
    assert assign_series({"a": LIKELY["flair"]}, ("flair", "t2")) is None
    assert assign_series({"a": LIKELY["flair"], "b": LIKELY["t2"]}, ("flair", "pd")) is None
    assert assign_series({"a": LIKELY["flair"], "b": LIKELY["t2"]}, ("flair",), known=("flair",)) is None
