"""The DICE that an engine estimates for its masks, compared with the measured one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

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
    ranks = rankdata(estimated), rankdata(measured)
    with np.errstate(invalid="ignore"):  # a constant has no correlation
        pearson, spearman = (float(np.corrcoef(x, y)[0, 1]) for x, y in ((estimated, measured), ranks))
    return EstimateCheck(len(pairs), float(estimated.mean()), float(measured.mean()), pearson, spearman)
