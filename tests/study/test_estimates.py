"""Estimated against measured DICE: correlations as in scipy, and what is left out."""

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from anofpdm.scoring.pairs import Pair
from anofpdm.scoring.score_pairs import ScoredScan, ScoringReport
from anofpdm.study.native.estimates import check_estimates


def scored(measured, truth_ml=1.0):
    pairs = (Pair(f"p{number}", f"p{number}", Path("a"), Path("b")) for number in range(len(measured)))
    scores = (SimpleNamespace(dice=value, truth_ml=truth_ml) for value in measured)
    return ScoringReport(list(map(ScoredScan, pairs, scores)))


def by_scan(values):
    return {f"p{number}": float(value) for number, value in enumerate(values)}


def test_correlations_are_those_of_scipy():
    rng = np.random.default_rng(0)
    measured = np.round(rng.random(20), 1)  # with ties
    estimated = np.round(0.5 * measured + 0.3 * rng.random(20), 1)
    check = check_estimates(scored(measured), by_scan(estimated))
    correlations = stats.pearsonr(estimated, measured).statistic, stats.spearmanr(estimated, measured).statistic
    expected = (20, estimated.mean(), measured.mean(), *correlations)
    assert dataclasses.astuple(check) == pytest.approx(expected)
    assert f"correlation {check.pearson:.2f} (Pearson), {check.spearman:.2f} (Spearman)" in check.describe()


def test_scans_without_a_lesion_or_an_estimate_are_left_out():
    assert check_estimates(scored([0.1, 0.5, 0.9]), by_scan([0.2, 0.6])) is None
    assert check_estimates(scored([0.1, 0.5, 0.9], truth_ml=0.0), by_scan([0.2, 0.6, 0.8])) is None
    check = check_estimates(scored([0.5] * 4), by_scan([0.2, 0.6, 0.8]))
    assert check.scans == 3
    assert math.isnan(check.pearson)  # a constant has no correlation
