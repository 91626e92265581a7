"""Numbers that compare masks and maps with the truth. Counted once, exactly; what is undefined is NaN."""

import numpy as np


def dice(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """bool [N, H, W] each -> [N]; 1 where neither has a pixel."""
    both, either = _overlap(predicted, truth)
    return np.where(either, 2 * both / np.maximum(either, 1), 1.0)


def iou(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    both, either = _overlap(predicted, truth)
    union = either - both
    return np.where(union, both / np.maximum(union, 1), 1.0)


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """The exact area below precision and recall, one step for every distinct score. Both flat, [n]."""
    hits, taken = _by_falling_score(scores, truth)
    if not len(hits) or not hits[-1]:
        return float("nan")
    recall = np.concatenate([[0], hits / hits[-1]])
    return float((np.diff(recall) * hits / taken).sum())


def roc_auc(scores: np.ndarray, truth: np.ndarray) -> float:
    hits, taken = _by_falling_score(scores, truth)
    if not len(hits) or not hits[-1] or hits[-1] == taken[-1]:
        return float("nan")
    false = np.concatenate([[0], (taken - hits) / (taken[-1] - hits[-1])])
    true = np.concatenate([[0], hits / hits[-1]])
    return float(np.trapezoid(true, false))


def _overlap(predicted: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pixels in both, and the sum of both areas, per slice."""
    axes = tuple(range(1, truth.ndim))
    return (predicted & truth).sum(axis=axes), predicted.sum(axis=axes) + truth.sum(axis=axes)


def _by_falling_score(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """With everything at or above each distinct score taken: how many are true, how many there are."""
    order = np.argsort(scores, kind="stable")[::-1]
    ordered = scores[order]
    last_of_equals = np.flatnonzero(np.append(np.diff(ordered) != 0, True)) if len(ordered) else np.array([], dtype=int)
    return np.cumsum(truth[order])[last_of_equals].astype(float), last_of_equals + 1.0
