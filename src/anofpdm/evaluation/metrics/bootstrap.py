"""How sure are the numbers? 95% intervals from drawing patients, not slices, with replacement.

Slices of one patient resemble each other, so that drawing slices would promise too much. The same seed draws the same
patients: intervals of two methods on one set are paired. A draw in which the number is undefined is left out; with
fewer than two patients there is nothing to draw from, and both ends are NaN.
"""

from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.evaluation.metrics.pixels import (
    average_precision,
    check_patients,
    check_scores,
    precision_recall_area,
    roc_area,
    roc_auc,
)

REPEATS = 1000
BINS = 4096  # at most, of the scores
ENDS = (0.025, 0.975)  # of a 95% interval

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    value: float  # exact
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    average_precision: Estimate
    roc_auc: Estimate


def patient_bootstrap(values: np.ndarray, patients: np.ndarray, repeats: int = REPEATS, seed: int = 0) -> Interval:
    """Of the mean of values, both [N]; NaN values are left out of it."""
    defined = ~np.isnan(values)
    return ratio_bootstrap(np.where(defined, values, 0), defined, patients, repeats, seed)


def ratio_bootstrap(
    tops: np.ndarray, bottoms: np.ndarray, patients: np.ndarray, repeats: int = REPEATS, seed: int = 0
) -> Interval:
    """Of sum(tops) / sum(bottoms), all [N]: pooled precision, recall and lesion-wise F1 are such ratios of counts."""
    check_patients(patients, len(tops))
    check_patients(patients, len(bottoms))
    names, place = np.unique(patients, return_inverse=True)
    times = draws(len(names), repeats, seed)  # [R, P]
    top, bottom = (times @ np.bincount(place, counts, len(names)) for counts in (tops, bottoms))  # [R]
    return _interval(np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan))


def ranking_bootstrap(
    maps: np.ndarray,
    truth: np.ndarray,
    inside: np.ndarray,
    patients: np.ndarray,
    repeats: int = REPEATS,
    seed: int = 0,
) -> Ranking:
    """Of the pixels `inside`, pooled: maps, truth and inside [N, ...], patients [N]. Only the intervals are binned."""
    check_patients(patients, len(maps))
    true, false = score_histograms(maps, truth, inside, patients)  # [P, B]
    times = draws(len(true), repeats, seed).astype(float)  # [R, P]
    drawn = times @ true, times @ false  # [R, B]
    whole = true.sum(axis=0), false.sum(axis=0)  # [B]

    def estimate(exact: float, areas: np.ndarray, binned: np.ndarray) -> Estimate:
        """The interval is moved by what the bins have changed in the whole set."""
        return Estimate(exact, *_interval(np.clip(areas + (exact - binned), 0, 1)))

    pixels, lesion = maps[inside], truth[inside]
    return Ranking(
        estimate(average_precision(pixels, lesion), precision_recall_area(*drawn), precision_recall_area(*whole)),
        estimate(roc_auc(pixels, lesion), roc_area(*drawn), roc_area(*whole)),
    )


def score_histograms(
    maps: np.ndarray, truth: np.ndarray, inside: np.ndarray, patients: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lesion pixels and others by patient and by bin of falling score, [P, B] each."""
    if not maps.shape == truth.shape == inside.shape:
        raise EvaluationError(
            f"the maps are {maps.shape}, the truth is {truth.shape}, the foreground {inside.shape}; they must match"
        )
    check_scores(maps[inside], truth[inside])
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
    """Half at even ranks of all scores, half at even ranks of the lesions', which are few and lie at the top."""
    halves = [np.sort(part) for part in (scores, scores[truth]) if len(part)]
    picked = [part[np.linspace(0, len(part) - 1, BINS // 2).round().astype(int)] for part in halves]
    return np.unique(np.concatenate([[], *picked]))[1:]  # nothing lies below the lowest


def draws(n_patients: int, repeats: int, seed: int) -> np.ndarray:
    """How often each patient is drawn, [R, P]: as many as there are, with replacement, again and again."""
    if n_patients < 2:
        return np.zeros((repeats, n_patients), dtype=int)
    return np.random.default_rng(seed).multinomial(n_patients, np.full(n_patients, 1 / n_patients), size=repeats)


def _interval(values: np.ndarray) -> Interval:
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, ENDS)
    return float(low), float(high)
