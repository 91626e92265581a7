"""A trained student: predicts masks and decisions of a scan's slices. It is saved in its teacher's folder."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from anofpdm.errors import ConfigError, MethodError, ModelError
from anofpdm.method.calibration import CONTEXT_MM
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.decision import Decisions
from anofpdm.method.detection import CurveDetector
from anofpdm.method.mask import SMALLEST, smallest_lesion_level, smallest_pixels
from anofpdm.network.checkpoint import FORMAT, WEIGHTS, load_model, save_model
from anofpdm.network.weight_format import store
from anofpdm.options import WeightFormat
from anofpdm.scans.expects import ScanExpectation
from anofpdm.student.confidence import estimate_dice
from anofpdm.student.drawing import CALIBRATED, DrawingChoices
from anofpdm.student.faint import applied_thresholds, lower_thresholds
from anofpdm.student.linked import draw_masks
from anofpdm.student.outlines import outline_levels
from anofpdm.student.predict import predict_both
from anofpdm.student.student_network import Pixels, StudentConfig, StudentNet
from anofpdm.student.typical import TypicalScans, read_typical
from anofpdm.util.memory import is_out_of_memory
from anofpdm.util.progress import Progress, silent

FOLDER, TASK = "student", "student"
DETECTION_MM = 5.0  # sigma of the smoothing across slices, before a slice is called unhealthy


class DetectBy(StrEnum):
    """Output by which the student calls a slice unhealthy."""

    BOTH = "both"
    PIXELS = "pixels"  # one output alone: students calibrated by earlier versions
    SLICE = "slice"

    @property
    def numbers(self) -> int:
        """Numbers per slice."""
        return 2 if self is DetectBy.BOTH else 1


@dataclass(frozen=True)
class StudentCalibration:
    """Fitted to image-level labels."""

    detector: CurveDetector  # of one number per slice, or two
    accuracy: float  # cross-validated over patients, like the AUC; NaN if all slices are of one patient
    auc: float
    n_healthy: int
    n_unhealthy: int
    context_mm: float = CONTEXT_MM  # sigma of the smoothing of pixel logits across slices, like the teacher's maps
    detection_mm: float = DETECTION_MM
    smallest: int = SMALLEST
    detect_by: DetectBy = DetectBy.SLICE
    n_estimated: int = 0  # slices whose label was estimated from that of their scan; accuracy and AUC do not use it
    faint_span: float | None = None  # how far below its peak a faint lesion is drawn; None: threshold 0 everywhere

    def __post_init__(self) -> None:
        arrays = (self.detector.centre, self.detector.scale, self.detector.weights)
        if any(array.shape != (self.detect_by.numbers,) or not np.isfinite(array).all() for array in arrays):
            raise ValueError(f"the detector is not one of finite numbers, {self.detect_by.numbers} per slice")
        lengths = (self.context_mm, self.detection_mm)
        if not all(isinstance(mm, int | float) and 0 <= mm < math.inf for mm in lengths):
            raise ValueError(f"context_mm and detection_mm must be finite and at least 0, got {lengths}")
        if type(self.smallest) is not int or self.smallest < 0:
            raise ValueError(f"smallest must be an integer of at least 0, got {self.smallest!r}")
        span = self.faint_span
        if span is not None and not (isinstance(span, int | float) and 0 < span < math.inf):
            raise ValueError(f"faint_span must be finite and greater than 0, got {span!r}")
        if not all(isinstance(rating, int | float) for rating in (self.accuracy, self.auc)):
            raise ValueError("accuracy and auc must be numbers")

    def scores(self, pixel_logits: np.ndarray, slice_logits: np.ndarray, positions: SlicePositions) -> np.ndarray:
        """[n]: the detector's scores of slices; unhealthy from 0 on."""
        lengths_mm = self.context_mm, self.detection_mm
        values = detection_values(self.detect_by, pixel_logits, slice_logits, positions, *lengths_mm)
        return self.detector.scores(values)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: lists instead of arrays, None instead of NaN."""
        values = {"accuracy": self.accuracy, "auc": self.auc}
        ratings = {name: None if math.isnan(value) else value for name, value in values.items()}
        return {**asdict(self), **ratings, "detector": self.detector.to_dict()}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> "StudentCalibration":
        ratings = {name: math.nan if payload[name] is None else payload[name] for name in ("accuracy", "auc")}
        detect_by = DetectBy(payload.get("detect_by", DetectBy.SLICE))
        detector = CurveDetector.from_dict(payload["detector"])
        return cls(**{**payload, **ratings, "detector": detector, "detect_by": detect_by})


@dataclass(frozen=True)
class Student:
    network: StudentNet
    calibration: StudentCalibration
    teacher_sha256: str
    device: torch.device
    sha256: str = ""
    expects: ScanExpectation | None = None  # None: as its teacher
    foreground: tuple[float, float] | None = None  # smallest and largest fraction among the scans in calibration
    typical: TypicalScans | None = None  # the training scans
    drawing: DrawingChoices = CALIBRATED

    @property
    def config(self) -> StudentConfig:
        return self.network.config

    def decide(self, pixels: Pixels, positions: SlicePositions, progress: Progress = silent) -> Decisions:
        """Masks and detections of a scan's slices."""
        return self.decide_from(*predict_both(self.network, pixels, positions, self.device, progress), positions)

    def decide_from(self, passes: np.ndarray, slice_passes: np.ndarray, positions: SlicePositions) -> Decisions:
        """From the logits that `predict_both` returns."""
        calibration = self.calibration
        pixel_logits, slice_logits = passes.mean(axis=0), slice_passes.mean(axis=0)
        score = calibration.scores(pixel_logits, slice_logits, positions)
        logits, *both = (
            smooth_across_slices(one, positions, calibration.context_mm) for one in (pixel_logits, *passes)
        )
        lowered, thresholds = self._thresholds(logits, positions)
        raised = logits - lowered - thresholds[:, None, None]
        chosen = self.drawing.smallest
        smallest = calibration.smallest if chosen is None else chosen
        drawn, masks = draw_masks(raised >= 0, score, smallest, positions)
        lowest, highest = applied_thresholds(lowered + thresholds[:, None, None], raised >= 0, masks)
        maps = expit(logits)
        undefined = np.full(len(logits), np.nan)
        return Decisions(
            maps=maps,
            masks=masks,
            outlines=outline_levels(raised, masks),
            drawn=drawn,
            detected=score >= 0,
            score=score,
            similarity=undefined,
            log_odds=score,
            end_step=np.full(len(logits), -1),
            end_divergence=undefined,
            quantile=undefined,
            threshold=expit(lowest),
            highest_threshold=expit(highest),
            estimated_dice=estimate_dice([one - lowered for one in both], thresholds, maps, masks),
        )

    def _thresholds(self, logits: np.ndarray, positions: SlicePositions) -> tuple[np.ndarray, np.ndarray]:
        """Of logits [n, H, W]: lowered thresholds of faint lesions [n, H, W], and the rest, [n], of each slice."""
        if (chosen := self.drawing.threshold_logit) is not None:
            return np.zeros_like(logits), np.full(len(logits), chosen, logits.dtype)
        lowered = lower_thresholds(logits, positions, self.calibration.faint_span)
        return lowered, mask_thresholds(logits - lowered, self.calibration.smallest)


def detection_values(
    detect_by: DetectBy,
    pixel_logits: np.ndarray,
    slice_logits: np.ndarray,
    positions: SlicePositions,
    context_mm: float = CONTEXT_MM,
    detection_mm: float = DETECTION_MM,
) -> np.ndarray:
    """[n, numbers]: the pixel logit exceeded by as many pixels as the smallest lesion has, the slice logit, or both.
    For both, pixels are smoothed as masks are, so that detection ends where the lesion ends."""
    pixels_mm = context_mm if detect_by is DetectBy.BOTH else detection_mm
    found = []
    if detect_by is not DetectBy.SLICE:
        found.append(smallest_lesion_level(smooth_across_slices(pixel_logits, positions, pixels_mm)))
    if detect_by is not DetectBy.PIXELS:
        found.append(smooth_across_slices(slice_logits, positions, detection_mm))
    return np.stack(found, axis=1)


def mask_thresholds(logits: np.ndarray, smallest: int = SMALLEST) -> np.ndarray:
    """[n, H, W] -> [n]: 0, or lower where fewer pixels reach 0 than the smallest component has. The student is unsure
    at the thin ends of lesions; whether there is a lesion is left to the detector."""
    flat = logits.reshape(len(logits), -1)
    rank = min(flat.shape[1] - 1, smallest_pixels(logits.shape[1:], smallest))
    return np.minimum(0, -np.partition(-flat, rank, axis=1)[:, rank])


# ---- on disk ---------------------------------------------------------------------------------------------------------


def save_student(
    model_folder: Path,
    student: Student,
    provenance: Mapping[str, Any],
    weights: WeightFormat = WeightFormat.FLOAT32,
) -> None:
    payload = {
        "format": FORMAT,
        "task": TASK,
        "network": asdict(student.config),
        "calibration": student.calibration.to_dict(),
        "teacher_sha256": student.teacher_sha256,
        "distillation": provenance,
        "expects": None if student.expects is None else asdict(student.expects),
        "foreground": student.foreground,
        "typical": None if student.typical is None else student.typical.to_dict(),
    }
    folder = model_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, store(student.network.state_dict(), weights), payload)


def load_student(model_folder: Path, teacher_sha256: str | None, device: torch.device) -> Student | None:
    """None if the model has no student; a student of another model is an error. Without a teacher, any is accepted."""
    folder = model_folder / FOLDER
    if not (folder / WEIGHTS).is_file():
        return None
    weights, payload, digest = load_model(folder)
    if payload.get("task") != TASK:
        raise ModelError(f"{folder}: not a student; remove it, or distill again")
    if teacher_sha256 is not None and payload.get("teacher_sha256") != teacher_sha256:
        raise ModelError(
            f"{folder}: the student of another model than the one in {model_folder}; run `anofpdm distill` again, "
            "or remove it"
        )
    try:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in payload["network"].items()}
        network = StudentNet(StudentConfig(**values))
        calibration = StudentCalibration.from_dict(payload["calibration"])
        scans = _recorded_scans(payload)
    except (ConfigError, MethodError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ModelError(f"{folder}: damaged, or of another version ({problem}); distill again, or remove it") from None
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except RuntimeError as problem:
        if is_out_of_memory(problem):
            raise
        raise ModelError(f"{folder}: the weights do not fit the network in its configuration; distill again") from None
    return Student(network.to(device).eval(), calibration, payload["teacher_sha256"], device, digest, *scans)


def _recorded_scans(
    payload: Mapping[str, Any],
) -> tuple[ScanExpectation | None, tuple[float, float] | None, TypicalScans | None]:
    """What the student expects of a scan; students of earlier versions have recorded nothing."""
    expects, foreground = payload.get("expects"), payload.get("foreground")
    low, high = (0.0, 1.0) if foreground is None else foreground
    if not 0 <= low <= high <= 1:
        raise ValueError(f"foreground {foreground!r}")
    recorded = None if expects is None else ScanExpectation.from_dict(expects)
    return recorded, None if foreground is None else (low, high), read_typical(payload.get("typical"))
