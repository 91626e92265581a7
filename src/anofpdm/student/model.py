"""A student that has learned: asked for a scan's slices, it draws and decides. It lives in its teacher's folder."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from anofpdm.errors import CalibrationError, ConfigError, ModelError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import CONTEXT_MM
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.decision import Decisions
from anofpdm.method.detection import CurveDetector, fitted_and_rated
from anofpdm.method.mask import SMALLEST, mask, smallest_lesion_level, smallest_pixels
from anofpdm.network.checkpoint import FORMAT, load_model, save_model
from anofpdm.student.network import StudentConfig, StudentNet, log_odds
from anofpdm.student.targets import Pixels, neighbours_of, shown_together

FOLDER, TASK, ONNX = "student", "student", "student.onnx"
BATCH = 32
DETECTION_MM = 5.0  # how far a slice looks at its neighbours before it is called unhealthy
SIGNS = ("slice", "pixels")  # what calls a slice unhealthy
CLEARLY = 0.02  # of AUC, by which pixels must be better than what it says of the whole slice

Listener = Callable[[int, int], None]


@dataclass(frozen=True)
class StudentCalibration:
    """From image-level labels."""

    detector: CurveDetector  # on a slice's sign
    accuracy: float  # on patients it was not fitted on, as the AUC
    auc: float
    n_healthy: int
    n_unhealthy: int
    context_mm: float = CONTEXT_MM  # what it says of pixels is smoothed across neighbours, like its teacher's maps
    detection_mm: float = DETECTION_MM  # and what it says of slices
    smallest: int = SMALLEST
    sign: str = SIGNS[0]

    def said(self) -> dict[str, Any]:
        """For a file: no arrays, and null for what is no number."""
        rated = {
            name: None if math.isnan(value) else value
            for name, value in (("accuracy", self.accuracy), ("auc", self.auc))
        }
        return {**asdict(self), **rated, "detector": self.detector.said()}

    @classmethod
    def from_said(cls, said: Mapping[str, Any]) -> "StudentCalibration":
        rated = {name: math.nan if said[name] is None else said[name] for name in ("accuracy", "auc")}
        detector = CurveDetector.from_said(said["detector"])
        arrays = (detector.centre, detector.scale, detector.weights)
        if any(array.shape != (1,) or not np.isfinite(array).all() for array in arrays):
            raise ValueError("a detector of something else than one number")
        if said.get("sign", SIGNS[0]) not in SIGNS:
            raise ValueError("a sign that is not known")
        return cls(**{**said, **rated, "detector": detector})


@dataclass(frozen=True)
class Student:
    network: StudentNet
    calibration: StudentCalibration
    teacher_sha256: str
    device: torch.device
    sha256: str = ""

    @property
    def config(self) -> StudentConfig:
        return self.network.config

    def decide(
        self, pixels: Pixels, places: SlicePositions, on_progress: Listener = lambda _done, _total: None
    ) -> Decisions:
        """Slices [n, C, H, W] of its own modalities, by row."""
        calibration = self.calibration
        odds, whole = asked(self.network, pixels, places, self.device, on_progress)
        sign = sign_of(calibration.sign, odds, whole, places, calibration.detection_mm)
        score = calibration.detector.scores(sign[:, None])
        odds = smooth_across_slices(odds, places, calibration.context_mm)
        cuts = cuts_of(odds, calibration.smallest)
        drawn = mask(odds, cuts, calibration.smallest)
        detected = score >= 0
        unknown = np.full(len(odds), np.nan)
        return Decisions(
            maps=expit(odds),
            masks=drawn & detected[:, None, None],
            drawn=drawn,
            detected=detected,
            score=score,
            similarity=unknown,
            log_odds=score,
            end_step=np.full(len(odds), -1),
            end_divergence=unknown,
            quantile=unknown,
            threshold=expit(cuts),
        )


def asked(
    network: StudentNet,
    pixels: Pixels,
    places: SlicePositions,
    device: torch.device,
    on_progress: Listener = lambda _done, _total: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Log odds of lesion [n, H, W] of every slice, and of the whole slice being unhealthy [n]."""
    together = neighbours_of(places, network.config.neighbours_mm)
    parts: list[tuple[np.ndarray, ...]] = []
    for start in range(0, len(together), BATCH):
        x = torch.from_numpy(shown_together(pixels, together[start : start + BATCH])).to(device)
        parts.append(tuple(part.cpu().numpy() for part in log_odds(network, x)))
        on_progress(min(start + BATCH, len(together)), len(together))
    odds, whole = (np.concatenate(part) for part in zip(*parts, strict=True))
    return odds, whole


def sign_of(
    name: str, odds: np.ndarray, whole: np.ndarray, places: SlicePositions, detection_mm: float = DETECTION_MM
) -> np.ndarray:
    """[n]: what it says of the whole slice, or what as many of its pixels reach as the smallest lesion has."""
    if name == "slice":
        return smooth_across_slices(whole, places, detection_mm)
    return smallest_lesion_level(smooth_across_slices(odds, places, detection_mm))


def cuts_of(odds: np.ndarray, smallest: int = SMALLEST) -> np.ndarray:
    """[n, H, W] -> [n]: even odds, or less where fewer pixels reach them than a component must have: the student is not
    sure of the thin ends of lesions, and the detector has yet to say whether there is anything."""
    flat = odds.reshape(len(odds), -1)
    rank = min(flat.shape[1] - 1, smallest_pixels(odds.shape[1:], smallest))
    return np.minimum(0, -np.partition(-flat, rank, axis=1)[:, rank])


def calibrated(
    network: StudentNet,
    pixels: Pixels,
    labels: np.ndarray,
    patients: np.ndarray,
    places: SlicePositions,
    device: torch.device,
) -> StudentCalibration:
    """When to call a slice unhealthy, from image-level labels alone: by what it says of the whole slice, unless its
    pixels tell the labels apart clearly better, as they do where no slice was labelled unhealthy in training."""
    known = np.isin(labels, (HEALTHY, UNHEALTHY))
    unhealthy = labels[known] == UNHEALTHY
    if unhealthy.all() or not unhealthy.any():
        raise CalibrationError("a student is calibrated on healthy and unhealthy slices, and one kind is missing")
    odds, whole = asked(network, pixels, places, device)
    rated = {
        name: fitted_and_rated(sign_of(name, odds, whole, places)[known, None], unhealthy, patients[known])
        for name in SIGNS
    }
    sign = "pixels" if rated["pixels"][1].auc > rated["slice"][1].auc + CLEARLY else "slice"
    detector, accuracy = rated[sign]
    return StudentCalibration(
        detector=detector,
        accuracy=accuracy.accuracy,
        auc=accuracy.auc,
        n_healthy=int((~unhealthy).sum()),
        n_unhealthy=int(unhealthy.sum()),
        sign=sign,
    )


# ---- on disk ---------------------------------------------------------------------------------------------------------


def save_student(model_folder: Path, student: Student, taught: dict[str, Any], *, half: bool = False) -> str:
    said = {
        "format": FORMAT,
        "task": TASK,
        "network": asdict(student.config),
        "calibration": student.calibration.said(),
        "teacher_sha256": student.teacher_sha256,
        "taught": taught,
    }
    folder = model_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ONNX).unlink(missing_ok=True)  # of the student before
    weights = student.network.state_dict()
    return save_model(folder, {name: w.half() if half else w for name, w in weights.items()}, said)


def load_student(model_folder: Path, teacher_sha256: str, device: torch.device) -> Student | None:
    """None where the model has no student; a student of another teacher is an error."""
    folder = model_folder / FOLDER
    if not (folder / "weights.safetensors").is_file():
        return None
    weights, said, digest = load_model(folder)
    if said.get("task") != TASK:
        raise ModelError(f"{folder}: not a student; remove it, or distill again")
    if said.get("teacher_sha256") != teacher_sha256:
        raise ModelError(
            f"{folder}: was taught by another model than the one beside it; run `anofpdm distill` again, or remove it"
        )
    try:
        network, calibration = StudentNet(_config(said["network"])), StudentCalibration.from_said(said["calibration"])
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ModelError(f"{folder}: damaged, or of another version ({problem}); distill again, or remove it") from None
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except RuntimeError:
        raise ModelError(f"{folder}: its weights are not for the network it names; distill again") from None
    return Student(network.to(device).eval(), calibration, teacher_sha256, device, digest)


def _config(said: dict[str, Any]) -> StudentConfig:
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()}
    return StudentConfig(**given)


def channels_of(modalities: Sequence[str], wanted: Sequence[str]) -> list[int]:
    return [list(modalities).index(name) for name in wanted]
