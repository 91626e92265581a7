"""Pixel metrics of masks against the ground truth. Undefined values are NaN."""

from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError


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
