"""A method's masks and maps on one set of slices, as numbers."""

import io
import json
import zipfile
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.evaluation.metrics.bootstrap import patient_bootstrap, ranking_bootstrap, ratio_bootstrap
from anofpdm.evaluation.metrics.lesions import dice_by_size, hd95, lesion_area, lesion_counts
from anofpdm.evaluation.metrics.pixels import confusion, dice, iou, mean_defined, volume_dice
from anofpdm.method.detection import auc
from anofpdm.util.files import write_atomically


@dataclass(frozen=True)
class Known:
    """The truth of a set: one entry a slice."""

    truth: np.ndarray  # bool [n, H, W]
    foreground: np.ndarray  # bool [n, H, W]
    patients: np.ndarray
    pixel_mm: np.ndarray

    def take(self, positions: np.ndarray | slice) -> "Known":
        return Known(*(value[positions] for value in (self.truth, self.foreground, self.patients, self.pixel_mm)))

    @property
    def unhealthy(self) -> np.ndarray:
        return np.asarray(self.truth.any(axis=(1, 2)))


@dataclass(frozen=True)
class Scores:
    """Of one method, one setup, one seed."""

    numbers: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95%, over patients
    by_size: list[dict[str, Any]]
    by_patient: dict[str, dict[str, float]]
    slices: dict[str, np.ndarray]  # [n] each


def scored(
    maps: np.ndarray,  # [n, H, W]
    masks: np.ndarray,  # bool [n, H, W]
    detected: np.ndarray,  # [n]
    score: np.ndarray,  # [n], of being unhealthy
    known: Known,
    with_small: np.ndarray | None = None,  # the masks before small components were dropped
) -> Scores:
    truth, patients = known.truth, known.patients
    slices = {
        "dice": dice(masks, truth),
        "iou": iou(masks, truth),
        "hd95_mm": hd95(masks, truth) * known.pixel_mm,
        "lesion_pixels": lesion_area(truth),
        "drawn_pixels": lesion_area(masks),
        "detected": detected,
        "score": score,
    }
    pixels, lesions = confusion(masks, truth), lesion_counts(masks, truth)
    ranking = ranking_bootstrap(maps, truth, known.foreground, patients)
    volumes = volume_dice(masks, truth, patients)
    correct = (detected == known.unhealthy).astype(float)
    numbers = {
        "dice": float(slices["dice"].mean()),
        "iou": float(slices["iou"].mean()),
        "auprc": ranking.average_precision.value,
        "auroc": ranking.roc_auc.value,
        "precision": pixels.precision,
        "recall": pixels.recall,
        "hd95_mm": mean_defined(slices["hd95_mm"]),
        "hd95_slices": float((~np.isnan(slices["hd95_mm"])).sum()),
        "dice_with_small": float(dice(masks if with_small is None else with_small, truth).mean()),
        "lesion_f1": lesions.f1,
        "volume_dice": mean_defined(volumes),
        "accuracy": float(correct.mean()),
        "image_auc": auc(score, known.unhealthy),
    }
    intervals = {name: patient_bootstrap(slices[name], patients) for name in ("dice", "iou", "hd95_mm")}
    intervals |= {
        "auprc": (ranking.average_precision.low, ranking.average_precision.high),
        "auroc": (ranking.roc_auc.low, ranking.roc_auc.high),
        "accuracy": patient_bootstrap(correct, patients),
        "volume_dice": patient_bootstrap(volumes, np.unique(patients)),
        "precision": ratio_bootstrap(pixels.tp, pixels.tp + pixels.fp, patients),
        "recall": ratio_bootstrap(pixels.tp, pixels.tp + pixels.fn, patients),
        "lesion_f1": ratio_bootstrap(2 * lesions.found, 2 * lesions.found + lesions.missed + lesions.false, patients),
    }
    if known.unhealthy.any() and not known.unhealthy.all():
        images = ranking_bootstrap(score, known.unhealthy, np.ones(len(score), dtype=bool), patients).roc_auc
        intervals["image_auc"] = (images.low, images.high)
    by_size = [{**asdict(one), "name": one.name} for one in dice_by_size(masks, truth)]
    by_patient = {
        str(patient): {
            "dice": float(slices["dice"][patients == patient].mean()),
            "volume_dice": float(volume),
            "slices": int((patients == patient).sum()),
        }
        for patient, volume in zip(np.unique(patients), volumes, strict=True)
    }
    return Scores(numbers, intervals, by_size, by_patient, slices)


def all_empty(known: Known) -> Scores:
    """What predicting nothing scores: it says how much of a mixed number is healthy slices."""
    nothing = np.zeros(len(known.truth), dtype=bool)
    maps = np.zeros(known.truth.shape, dtype=np.float32)
    return scored(maps, np.zeros_like(known.truth), nothing, nothing.astype(float), known)


def save_scores(scores: Scores, path: Path, made_with: dict[str, str], examples: dict[str, np.ndarray]) -> None:
    """Slices in one file, numbers in another; the second last, so that it means 'whole'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**scores.slices, **{f"example_{name}": value for name, value in examples.items()}}
    np.savez_compressed(buffer, **arrays)
    path.with_suffix(".json").unlink(missing_ok=True)
    write_atomically(path.with_suffix(".npz"), buffer.getvalue())
    said = {name: value for name, value in vars(scores).items() if name != "slices"}
    write_atomically(path.with_suffix(".json"), json.dumps({**said, "made_with": made_with}, indent=2).encode())


def load_scores(path: Path, made_with: dict[str, str]) -> tuple[Scores, dict[str, np.ndarray]] | None:
    """None where they are missing, half-written, or of other models."""
    try:
        said = json.loads(path.with_suffix(".json").read_text())
        if said.pop("made_with") != made_with:
            return None
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        slices = {name: value for name, value in arrays.items() if not name.startswith("example_")}
        examples = {name.removeprefix("example_"): arrays[name] for name in arrays.keys() - slices.keys()}
        said["intervals"] = {name: (ends[0], ends[1]) for name, ends in said["intervals"].items()}
        return Scores(**said, slices=slices), examples
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
