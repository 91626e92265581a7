"""Pixel metrics of masks and maps against the ground truth. Undefined values are NaN."""

from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError


def mean_defined(values: np.ndarray) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


# ---- masks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Confusion:
    """Pixels per slice, [N] each."""

    tp: np.ndarray
    fp: np.ndarray
    fn: np.ndarray

    @property
    def dice(self) -> np.ndarray:
        """[N]; 1 where neither mask has a pixel."""
        areas = 2 * self.tp + self.fp + self.fn
        return np.where(areas, 2 * self.tp / np.maximum(areas, 1), 1.0)

    @property
    def iou(self) -> np.ndarray:
        """[N]; 1 where neither mask has a pixel."""
        union = self.tp + self.fp + self.fn
        return np.where(union, self.tp / np.maximum(union, 1), 1.0)

    def volume_dice(self, patients: np.ndarray) -> np.ndarray:
        """Of all slices of each patient together, as np.unique(patients) sorts them; NaN where there is no lesion."""
        check_patients(patients, len(self.tp))
        names, place = np.unique(patients, return_inverse=True)
        volumes = Confusion(*(np.bincount(place, counts, len(names)) for counts in (self.tp, self.fp, self.fn)))
        return np.where(volumes.tp + volumes.fn > 0, volumes.dice, np.nan)


def confusion(predicted: np.ndarray, truth: np.ndarray) -> Confusion:
    """bool [N, H, W] each."""
    check_masks(predicted, truth)
    tp = _per_slice(predicted & truth)
    return Confusion(tp, _per_slice(predicted) - tp, _per_slice(truth) - tp)


def dice(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """bool [N, H, W] each -> [N]; 1 where neither has a pixel."""
    return confusion(predicted, truth).dice


def check_masks(predicted: np.ndarray, truth: np.ndarray) -> None:
    if predicted.shape != truth.shape:
        raise EvaluationError(f"the masks are {predicted.shape} and the truth is {truth.shape}; they must match")
    if predicted.dtype != bool or truth.dtype != bool:
        raise EvaluationError(f"masks must be boolean, got {predicted.dtype} for a truth of {truth.dtype}")


def check_patients(patients: np.ndarray, n_slices: int) -> None:
    if len(patients) != n_slices:
        raise EvaluationError(f"{len(patients)} patient names for {n_slices} slices; every slice needs its patient")


def _per_slice(mask: np.ndarray) -> np.ndarray:
    return np.count_nonzero(mask, axis=tuple(range(1, mask.ndim)))


# ---- maps ------------------------------------------------------------------------------------------------------------


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
