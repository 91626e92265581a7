"""Scores over many scans: means, medians, intervals over patients, and by lesion volume."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    return Summary(
        scans=len(scans),
        patients=len({scan.pair.patient for scan in scans}),
        scores=_statistics(scans, TITLES),
        by_volume=_scan_bins(scans),
        by_lesion=_lesion_bins([lesion for lesion in lesions if lesion.kind != "false"]),
        false_components=sum(lesion.kind == "false" for lesion in lesions),
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


def _scan_bins(scans: Sequence[ScoredScan]) -> list[VolumeBin]:
    bins = {"no lesion": [scan for scan in scans if not scan.scores.truth_ml]}
    for name, low, high in _limits(SCAN_ML):
        bins[name] = [scan for scan in scans if low < scan.scores.truth_ml <= high]
    return [VolumeBin(name, len(some), _statistics(some, BY_VOLUME)) for name, some in bins.items() if some]


def _lesion_bins(lesions: Sequence[Lesion]) -> list[LesionBin]:
    bins = []
    for name, low, high in _limits(LESION_ML):
        kinds = [lesion.kind for lesion in lesions if low < lesion.volume_ml <= high]
        dices = [lesion.dice for lesion in lesions if low < lesion.volume_ml <= high]
        if kinds:
            bins.append(LesionBin(name, len(kinds), kinds.count("found"), float(np.mean(dices))))
    return bins


def _limits(starts: Sequence[float]) -> list[tuple[str, float, float]]:
    """Name, lower and upper end of each bin, in ml."""
    bins = [(f"{low:g} to {high:g} ml", low, high) for low, high in itertools.pairwise(starts)]
    return [*bins, (f"over {starts[-1]:g} ml", starts[-1], float("inf"))]
