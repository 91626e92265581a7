"""Areas below the curves that rank pixels or slices by a score: AUPRC and AUROC, with intervals from a bootstrap."""

from collections.abc import Callable

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.bootstrap import Estimate, interval_of, resample_patients
from anofpdm.scoring.metrics.pixels import check_masks, check_patients

BINS = 4096  # of the scores, at most


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """The exact area below precision and recall, one step for every distinct score. Both flat, [n]."""
    return float(precision_recall_area(*count_by_score(scores, truth)))


def roc_auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """The chance that a lesion pixel scores above another; ties count half. Both flat, [n]."""
    return float(roc_area(*count_by_score(scores, truth)))


def precision_recall_area(true: np.ndarray, false: np.ndarray) -> np.ndarray:
    """Counts [..., B] in groups of equal score, highest first -> [...]; NaN where nothing is true."""
    hits = true.cumsum(axis=-1)
    taken = hits + false.cumsum(axis=-1)
    total = true.sum(axis=-1)
    area = (true * (hits / np.maximum(taken, 1))).sum(axis=-1) / np.maximum(total, 1)
    return np.where(total > 0, area, np.nan)


def roc_area(true: np.ndarray, false: np.ndarray) -> np.ndarray:
    """Counts [..., B] in groups of equal score, highest first -> [...]; NaN where all or nothing is true."""
    above = true.cumsum(axis=-1) - true / 2
    pairs = true.sum(axis=-1) * false.sum(axis=-1, dtype=float)
    area = (false * above).sum(axis=-1) / np.maximum(pairs, 1)
    return np.where(pairs > 0, area, np.nan)


def check_scores(scores: np.ndarray, truth: np.ndarray) -> None:
    check_masks(np.empty(scores.shape, dtype=bool), truth)
    n_broken = np.count_nonzero(np.isnan(scores))
    if n_broken:
        raise EvaluationError(f"{n_broken} of {scores.size} scores are not numbers (NaN), so they cannot be ranked")


def count_by_score(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many are true and how many false, by falling score; falses between two true scores are one group.

    Neither area depends on the order within a run of falses. Two plain sorts are far quicker than one argsort.
    """
    check_scores(scores, truth)
    values, counts = np.unique(scores[truth], return_counts=True)
    rest = np.sort(scores[~truth])
    ends = np.stack([np.searchsorted(rest, values, side) for side in ("left", "right")], axis=-1)  # [values, 2]
    false = np.diff(ends.ravel(), prepend=0, append=len(rest))  # below the first value, at it, below the next, ...
    true = np.zeros_like(false)
    true[1::2] = counts
    return true[::-1], false[::-1]


# ---- intervals -------------------------------------------------------------------------------------------------------


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
    times = resample_patients(len(counts[0])).astype(float)  # [R, P]

    def estimate(area: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Estimate:
        """The interval is shifted by the binning error on the whole set."""
        exact = float(area(*exact_counts))
        areas = area(*(times @ histogram for histogram in counts))
        binned = area(*(histogram.sum(axis=0) for histogram in counts))
        return Estimate(exact, interval_of(np.clip(areas + (exact - binned), 0, 1)))

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
