"""The DICE that an engine estimates for its masks, compared with the measured one."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import ConstantInputWarning, pearsonr, spearmanr

from anofpdm.scoring.score_pairs import ScoringReport

FEWEST = 3  # scans, for a correlation


@dataclass(frozen=True)
class EstimateCheck:
    """Over scans with a lesion and an estimate. NaN where undefined."""

    scans: int
    mean_estimate: float
    mean_dice: float
    pearson: float
    spearman: float

    def describe(self) -> str:
        return (
            f"DICE estimated without masks: mean {self.mean_estimate:.3f}, measured {self.mean_dice:.3f} "
            f"(n = {self.scans}); correlation {self.pearson:.2f} (Pearson), {self.spearman:.2f} (Spearman)."
        )


def check_estimates(scoring: ScoringReport, estimates: Mapping[str, float]) -> EstimateCheck | None:
    """`estimates` are by scan. None where fewer than three scans have one."""
    pairs = [
        (estimates[scan.pair.name], scan.scores.dice)
        for scan in scoring.scans
        if scan.pair.name in estimates and scan.scores.truth_ml
    ]
    if len(pairs) < FEWEST:
        return None
    estimated, measured = np.array(pairs).T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantInputWarning)  # NaN
        pearson, spearman = (of(estimated, measured).statistic for of in (pearsonr, spearmanr))
    return EstimateCheck(len(pairs), float(estimated.mean()), float(measured.mean()), float(pearson), float(spearman))
