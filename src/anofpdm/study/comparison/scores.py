"""Scores of one method's predictions on a set of slices. Worker processes import this: no torch here."""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.scoring.metrics.bootstrap import Estimate, Interval, mean_estimate, ratio_estimate
from anofpdm.scoring.metrics.pixels import Confusion, confusion, dice
from anofpdm.study.comparison.names import Setup
from anofpdm.study.comparison.rankings import ranking_estimates
from anofpdm.study.comparison.slice_lesions import SizeBin, dice_by_size, hd95, lesion_area, lesion_counts


@dataclass(frozen=True)
class GroundTruth:
    """One entry a slice that methods are scored on."""

    rows: np.ndarray  # in the cohort's order
    masks: np.ndarray  # bool [n, H, W]
    foreground: np.ndarray  # bool [n, H, W]
    patients: np.ndarray
    pixel_mm: np.ndarray

    def take(self, positions: np.ndarray | slice) -> "GroundTruth":
        return GroundTruth(*(getattr(self, field.name)[positions] for field in fields(self)))

    @property
    def unhealthy(self) -> np.ndarray:
        return np.asarray(self.masks.any(axis=(1, 2)))

    def positions(self, setup: Setup) -> slice | np.ndarray:
        """Positions of a setup's slices. All of them are a slice object, which does not copy arrays."""
        return np.flatnonzero(self.unhealthy) if setup == Setup.UNHEALTHY else slice(None)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for field in fields(self):
            values = np.asarray(getattr(self, field.name))
            file = folder / f"{field.name}.npy"
            np.lib.format.open_memmap(file, "w+", values.dtype, values.shape)[...] = values

    @classmethod
    def open(cls, folder: Path) -> "GroundTruth":
        return cls(*(_open(folder, field.name) for field in fields(cls)))


@dataclass(frozen=True)
class Predictions:
    """One entry a slice."""

    maps: np.ndarray  # [n, H, W]
    masks: np.ndarray  # bool [n, H, W]
    detected: np.ndarray  # bool [n]
    score: np.ndarray  # [n], higher is more unhealthy
    masks_with_small: np.ndarray | None = None  # masks before small components are removed

    def gated(self) -> "Predictions":
        """Masks of slices that are called healthy are emptied."""
        detected, with_small = self.detected[:, None, None], self.masks_with_small
        with_small = None if with_small is None else with_small & detected
        return replace(self, masks=self.masks & detected, masks_with_small=with_small)


@dataclass(frozen=True)
class Scores:
    """Of one method, setup and seed."""

    numbers: dict[str, float]
    intervals: dict[str, Interval]  # 95%, over patients
    by_size: list[SizeBin]
    by_patient: dict[str, dict[str, float]]  # mean DICE over slices, volume DICE, number of slices
    slices: dict[str, np.ndarray]  # [n] each

    def to_dict(self) -> dict[str, Any]:
        """Without the slices."""
        by_size = [{**asdict(size), "name": size.name} for size in self.by_size]
        return {"numbers": self.numbers, "intervals": self.intervals, "by_size": by_size, "by_patient": self.by_patient}


def score_predictions(predicted: Predictions, truth: GroundTruth) -> Scores:
    masks, patients = predicted.masks, truth.patients
    pixels = confusion(masks, truth.masks)
    slices = {
        "dice": pixels.dice,
        "iou": pixels.iou,
        "hd95_mm": hd95(masks, truth.masks) * truth.pixel_mm,
        "lesion_pixels": lesion_area(truth.masks),
        "drawn_pixels": lesion_area(masks),
        "detected": predicted.detected,
        "score": predicted.score,
    }
    volumes = pixels.volume_dice(patients)
    estimates = _estimates(predicted, truth, slices, pixels, volumes)
    with_small = masks if predicted.masks_with_small is None else predicted.masks_with_small
    numbers = {name: estimate.value for name, estimate in estimates.items()}
    numbers["hd95_slices"] = float((~np.isnan(slices["hd95_mm"])).sum())
    numbers["dice_with_small"] = float(dice(with_small, truth.masks).mean())
    intervals = {name: estimate.interval for name, estimate in estimates.items()}
    own_dice = {patient: slices["dice"][patients == patient] for patient in np.unique(patients)}
    by_patient = {
        str(patient): {"dice": float(own.mean()), "volume_dice": float(volume), "slices": len(own)}
        for (patient, own), volume in zip(own_dice.items(), volumes, strict=True)
    }
    return Scores(numbers, intervals, dice_by_size(masks, truth.masks), by_patient, slices)


def _estimates(
    predicted: Predictions, truth: GroundTruth, slices: dict[str, np.ndarray], pixels: Confusion, volumes: np.ndarray
) -> dict[str, Estimate]:
    patients, unhealthy = truth.patients, truth.unhealthy
    detected, missed, false = lesion_counts(predicted.masks, truth.masks)
    auprc, auroc = ranking_estimates(predicted.maps, truth.masks, truth.foreground, patients)
    every_slice = np.ones(len(unhealthy), dtype=bool)
    return {
        **{name: mean_estimate(slices[name], patients) for name in ("dice", "iou", "hd95_mm")},
        "auprc": auprc,
        "auroc": auroc,
        "precision": ratio_estimate(pixels.tp, pixels.tp + pixels.fp, patients),
        "recall": ratio_estimate(pixels.tp, pixels.tp + pixels.fn, patients),
        "lesion_f1": ratio_estimate(2 * detected, 2 * detected + missed + false, patients),
        "volume_dice": mean_estimate(volumes, np.unique(patients)),
        "accuracy": mean_estimate((predicted.detected == unhealthy).astype(float), patients),
        "image_auc": ranking_estimates(predicted.score, unhealthy, every_slice, patients)[1],
    }


def score_empty(truth: GroundTruth) -> Scores:
    """Scores of predicting nothing: the share of a mixed DICE that healthy slices account for."""
    nothing = np.zeros(len(truth.masks), dtype=bool)
    maps = np.zeros(truth.masks.shape, dtype=np.float32)
    return score_predictions(Predictions(maps, np.zeros_like(truth.masks), nothing, nothing.astype(float)), truth)


def without_detector(scores: Scores) -> Scores:
    """Among unhealthy slices alone there is nothing to detect, and volumes are incomplete."""
    for name in ("accuracy", "image_auc", "volume_dice"):
        scores.numbers[name] = float("nan")
        scores.intervals.pop(name, None)
    return scores


def _open(folder: Path, name: str) -> np.ndarray:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r"))
