"""Estimated against measured DICE: scans that are left out."""

import math
from pathlib import Path
from types import SimpleNamespace

from anofpdm.scoring.pairs import Pair
from anofpdm.scoring.score_pairs import ScoredScan, ScoringReport
from anofpdm.study.native.estimates import check_estimates


def scored(measured, truth_ml=1.0):
    pairs = (Pair(f"p{number}", f"p{number}", Path("a"), Path("b")) for number in range(len(measured)))
    scores = (SimpleNamespace(dice=value, truth_ml=truth_ml) for value in measured)
    return ScoringReport(list(map(ScoredScan, pairs, scores)))


def by_scan(values):
    return {f"p{number}": float(value) for number, value in enumerate(values)}


def test_scans_without_a_lesion_or_an_estimate_are_left_out():
    assert check_estimates(scored([0.1, 0.5, 0.9]), by_scan([0.2, 0.6])) is None
    assert check_estimates(scored([0.1, 0.5, 0.9], truth_ml=0.0), by_scan([0.2, 0.6, 0.8])) is None
    check = check_estimates(scored([0.5] * 4), by_scan([0.2, 0.6, 0.8]))
    assert check.scans == 3
    assert math.isnan(check.pearson)  # a constant has no correlation
