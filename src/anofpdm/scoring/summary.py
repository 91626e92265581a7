"""Scores over many scans: means, medians, intervals over patients, and by lesion volume."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from anofpdm.scoring.metrics.bootstrap import Interval, mean_estimate
from anofpdm.scoring.metrics.lesionwise import Lesion
from anofpdm.scoring.score_pairs import ScoredScan

TITLES = {
    "dice": "DICE",
    "iou": "IoU",
    "precision": "precision",
    "recall": "recall",
    "truth_ml": "true volume, ml",
    "predicted_ml": "predicted volume, ml",
    "difference_ml": "volume difference, ml",
    "relative_difference": "relative volume difference",
    "hd95_mm": "HD95, mm",
    "surface_distance_mm": "mean surface distance, mm",
    "surface_dice_1mm": "surface DICE at 1 mm",
    "surface_dice_2mm": "surface DICE at 2 mm",
    "lesion_dice": "lesion-wise DICE (BraTS)",
    "lesion_hd95_mm": "lesion-wise HD95 (BraTS), mm",
    "lesion_f1": "lesion F1 (ISLES, ATLAS)",
    "lesions_truth": "true lesions",
    "lesions_predicted": "predicted lesions",
    "lesion_count_difference": "lesion count difference (ISLES, ATLAS)",
    "panoptic_quality": "panoptic quality (IoU above 0.5)",
}
BY_VOLUME = ("dice", "hd95_mm", "lesion_dice", "lesion_f1")
SCAN_ML, LESION_ML = (0.0, 1.0, 5.0, 20.0, 50.0), (0.0, 0.05, 0.5, 5.0, 50.0)  # each bin is above this; no upper end

Item = TypeVar("Item")


@dataclass(frozen=True)
class Statistic:
    mean: float
    median: float
    interval: Interval  # 95%, of the mean, from a bootstrap over patients
    scans: int  # with a defined value


@dataclass(frozen=True)
class VolumeBin:
    """Scans by the volume of their true lesions."""

    name: str
    scans: int
    scores: dict[str, Statistic]


@dataclass(frozen=True)
class LesionBin:
    """True lesions, as BraTS counts them, by volume."""

    name: str
    lesions: int
    detected: int
    dice: float  # mean, 0 for missed ones


@dataclass(frozen=True)
class Summary:
    scans: int
    patients: int
    scores: dict[str, Statistic]
    by_volume: list[VolumeBin]
    by_lesion: list[LesionBin]
    false_components: int


def summarise(scans: Sequence[ScoredScan]) -> Summary:
    lesions = [lesion for scan in scans for lesion in scan.scores.lesions]
    true_lesions = [lesion for lesion in lesions if lesion.kind != "false"]
    by_volume = _by_volume(scans, lambda scan: scan.scores.truth_ml, SCAN_ML)
    return Summary(
        scans=len(scans),
        patients=len({scan.pair.patient for scan in scans}),
        scores=_statistics(scans, TITLES),
        by_volume=[VolumeBin(name, len(some), _statistics(some, BY_VOLUME)) for name, some in by_volume.items()],
        by_lesion=[
            LesionBin(name, len(some), sum(lesion.kind == "found" for lesion in some), _mean_dice(some))
            for name, some in _by_volume(true_lesions, lambda lesion: lesion.volume_ml, LESION_ML).items()
        ],
        false_components=len(lesions) - len(true_lesions),
    )


def _statistics(scans: Sequence[ScoredScan], names: Iterable[str]) -> dict[str, Statistic]:
    patients = np.array([scan.pair.patient for scan in scans])
    return {
        name: _statistic(np.array([getattr(scan.scores, name) for scan in scans], dtype=float), patients)
        for name in names
    }


def _statistic(values: np.ndarray, patients: np.ndarray) -> Statistic:
    defined, mean = values[~np.isnan(values)], mean_estimate(values, patients)
    median = float(np.median(defined)) if len(defined) else float("nan")
    return Statistic(mean.value, median, mean.interval, len(defined))


def _mean_dice(lesions: Sequence[Lesion]) -> float:
    return float(np.mean([lesion.dice for lesion in lesions]))


def _by_volume(
    items: Sequence[Item], volume_ml: Callable[[Item], float], starts: Sequence[float]
) -> dict[str, list[Item]]:
    """By name of the bin; bins without any are left out."""
    bins = {"no lesion": [item for item in items if not volume_ml(item)]}
    for low, high in itertools.pairwise([*starts, math.inf]):
        name = f"over {low:g} ml" if math.isinf(high) else f"{low:g} to {high:g} ml"
        bins[name] = [item for item in items if low < volume_ml(item) <= high]
    return {name: some for name, some in bins.items() if some}
