"""Reliability of probabilities: of all pixels or slices that got a probability of 0.8, are 80% lesion?"""

from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.pixels import check_scores

BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Bins of equal width from 0 to 1, [B] each; sums of disjoint parts can be added."""

    count: np.ndarray
    probability_sum: np.ndarray
    positive: np.ndarray  # number of lesions

    def __add__(self, other: "Reliability") -> "Reliability":
        return Reliability(
            self.count + other.count,
            self.probability_sum + other.probability_sum,
            self.positive + other.positive,
        )

    @property
    def mean_probability(self) -> np.ndarray:
        """[B]; NaN in an empty bin."""
        return self._per_count(self.probability_sum)

    @property
    def positive_share(self) -> np.ndarray:
        """[B]; NaN in an empty bin."""
        return self._per_count(self.positive)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean of |mean probability - share of lesion|, weighted by count; NaN if empty."""
        total = self.count.sum()
        return float(np.abs(self.probability_sum - self.positive).sum() / total) if total else float("nan")

    def _per_count(self, values: np.ndarray) -> np.ndarray:
        return np.where(self.count > 0, values / np.maximum(self.count, 1), np.nan)


def reliability(probabilities: np.ndarray, truth: np.ndarray, bins: int = BINS) -> Reliability:
    """Both flat, [n]. A probability at the border of two bins belongs to the lower one."""
    check_scores(probabilities, truth)
    if probabilities.size and not (probabilities.min() >= 0 and probabilities.max() <= 1):
        raise EvaluationError(f"not probabilities: {probabilities.min():g} to {probabilities.max():g}, not 0 to 1")
    borders = np.linspace(0, 1, bins + 1)[1:-1]
    place = np.searchsorted(borders, probabilities)
    return Reliability(
        count=np.bincount(place, minlength=bins),
        probability_sum=np.bincount(place, probabilities, bins),
        positive=np.bincount(place[truth], minlength=bins),
    )
