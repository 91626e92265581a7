"""Series that are named as another contrast than their image shows."""

import itertools

import numpy as np
import pytest

from anofpdm.errors import ContrastWarning
from anofpdm.raw.contrast import CONTRASTS, compare_contrasts, measure_contrast
from anofpdm.raw.mixed_up import compare_slices, find_mixed_up, warn_mixed_up
from tests.raw.toy_studies import stripped_head, thick_grid


@pytest.fixture(scope="module")
def likelihoods():
    grid = thick_grid(np.eye(4), (2.0, 2.0, 5.0), (100, 112, 32))
    return {name: compare_contrasts(measure_contrast(stripped_head(name, np.eye(4), grid))) for name in CONTRASTS}


def test_no_warning_under_their_own_names(likelihoods):
    for count in range(5):
        for given in itertools.combinations(CONTRASTS, count):
            assert not find_mixed_up({name: likelihoods[name] for name in given})
    # T1 before and after contrast agent are too similar.
    assert not find_mixed_up({"t1": likelihoods["t1ce"], "t1ce": likelihoods["t1"]})


def test_another_series_is_reported(likelihoods):
    report = r"scan is given as t2, but its image looks like flair \(at least 9\d% sure"
    with pytest.warns(ContrastWarning, match=report):
        warn_mixed_up({"t2": likelihoods["flair"]}, {"t2": "scan"})
    wrong = find_mixed_up({"flair": likelihoods["t1"], "t2": likelihoods["t2"]})
    assert {name: contrast for name, (contrast, _) in wrong.items()} == {"flair": "t1"}


def test_an_exchange_is_recognised_as_one(likelihoods):
    series = {**likelihoods, "flair": likelihoods["t2"], "t2": likelihoods["flair"]}
    looks = "a is given as flair, but its image looks like t2; d is given as t2, but its image looks like flair"
    with pytest.warns(ContrastWarning, match=f"^flair and t2 look exchanged: {looks}"):
        warn_mixed_up(series, {"flair": "a", "t1": "b", "t1ce": "c", "t2": "d"})


def test_what_cannot_be_measured_is_not_compared():
    rng = np.random.default_rng(0)
    uniform = np.full((40, 1, 64, 64), -1.0, dtype=np.float32)
    uniform[5:-5, :, 10:-10, 10:-10] = 0.5
    noise = np.where(uniform > -1, rng.uniform(-0.9, 1, uniform.shape), -1)
    assert compare_slices(uniform, ("flair",), (3.0, 3.0)) == {}
    assert list(compare_slices(noise, ("flair",), (3.0, 3.0))) == ["flair"]
    assert compare_slices(noise, ("flair",), (0.5, 1.0)) == {}  # too small for a brain
    assert compare_slices(noise, ("adc",), (3.0, 3.0)) == {}
