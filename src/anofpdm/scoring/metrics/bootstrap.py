"""Scores of a set of slices or scans with 95% intervals from a bootstrap over patients.

Slices of one patient are similar, so resampling slices would give intervals that are too narrow. The same seed
resamples the same patients: intervals of two methods on one set are paired. Samples in which the number is undefined
are left out; with fewer than two patients both ends are NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.pixels import (
    check_patients,
    count_by_score,
    mean_defined,
    precision_recall_area,
    roc_area,
)

REPEATS, SEED = 1000, 0
BINS = 4096  # of the scores, at most

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    value: float  # exact; NaN where it is undefined
    interval: Interval


def mean_estimate(values: np.ndarray, patients: np.ndarray) -> Estimate:
    """Both [N]; NaN values are left out."""
    defined = ~np.isnan(values)
    return Estimate(mean_defined(values), _ratio_interval(np.where(defined, values, 0), defined, patients))


def ratio_estimate(tops: np.ndarray, bottoms: np.ndarray, patients: np.ndarray) -> Estimate:
    """Of sum(tops) / sum(bottoms), counts [N] each, such as pooled precision, recall and lesion-wise F1."""
    total = bottoms.sum()
    return Estimate(float(tops.sum() / total) if total else float("nan"), _ratio_interval(tops, bottoms, patients))


def _ratio_interval(tops: np.ndarray, bottoms: np.ndarray, patients: np.ndarray) -> Interval:
    check_patients(patients, len(tops))
    names, place = np.unique(patients, return_inverse=True)
    times = _resample(len(names))  # [R, P]
    top, bottom = (times @ np.bincount(place, counts, len(names)) for counts in (tops, bottoms))  # [R]
    return _interval(np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan))


def ranking_estimates(
    maps: np.ndarray, truth: np.ndarray, inside: np.ndarray, patients: np.ndarray
) -> tuple[Estimate, Estimate]:
    """AUPRC and AUROC of the pixels `inside`, pooled: maps, truth and inside [N, ...], patients [N].

    Values are exact; intervals use binned scores.
    """
    check_patients(patients, len(maps))
    if not maps.shape == truth.shape == inside.shape:
        raise EvaluationError(
            f"the maps are {maps.shape}, the truth is {truth.shape}, the foreground {inside.shape}; they must match"
        )
    exact_counts = count_by_score(maps[inside], truth[inside])
    counts = score_histograms(maps, truth, inside, patients)  # [P, B] each
    times = _resample(len(counts[0])).astype(float)  # [R, P]

    def estimate(area: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Estimate:
        """The interval is shifted by the binning error on the whole set."""
        exact = float(area(*exact_counts))
        areas = area(*(times @ histogram for histogram in counts))
        binned = area(*(histogram.sum(axis=0) for histogram in counts))
        return Estimate(exact, _interval(np.clip(areas + (exact - binned), 0, 1)))

    return estimate(precision_recall_area), estimate(roc_area)


def score_histograms(
    maps: np.ndarray, truth: np.ndarray, inside: np.ndarray, patients: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Counts of lesion pixels and of other pixels by patient and bin, highest scores first, [P, B] each."""
    edges = _edges(maps[inside], truth[inside])
    names, place = np.unique(patients, return_inverse=True)
    counts = np.zeros((2, len(names), len(edges) + 1))
    for patient, scores, lesion, pixels in zip(place, maps, truth, inside, strict=True):
        for kind, chosen in enumerate((lesion & pixels, ~lesion & pixels)):
            bins = np.searchsorted(edges, scores[chosen], side="right")
            counts[kind, patient] += np.bincount(bins, minlength=len(edges) + 1)
    true, false = counts[..., ::-1]
    return true, false


def _edges(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Half at evenly spaced ranks of all scores, half at those of lesion scores, which are few and high."""
    halves = [np.sort(part) for part in (scores, scores[truth]) if len(part)]
    picked = [part[np.linspace(0, len(part) - 1, BINS // 2).round().astype(int)] for part in halves]
    return np.unique(np.concatenate([[], *picked]))[1:]  # nothing lies below the lowest


def _resample(n_patients: int) -> np.ndarray:
    """How often each patient occurs in each sample of P patients with replacement, [R, P]."""
    if n_patients < 2:
        return np.zeros((REPEATS, n_patients), dtype=int)
    return np.random.default_rng(SEED).multinomial(n_patients, np.full(n_patients, 1 / n_patients), size=REPEATS)


def _interval(values: np.ndarray) -> Interval:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, (0.025, 0.975))
    return float(low), float(high)
