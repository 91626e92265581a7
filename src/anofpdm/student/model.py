"""A student that has learned: asked for a scan's slices, it draws and decides. It lives in its teacher's folder."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from anofpdm.errors import CalibrationError, ModelError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import CONTEXT_MM
from anofpdm.method.context import Places, smoothed
from anofpdm.method.decision import Decisions
from anofpdm.method.detection import auc, best_cut
from anofpdm.method.mask import SMALLEST, mask, smallest_pixels
from anofpdm.network.checkpoint import FORMAT, load_model, save_model
from anofpdm.student.lessons import Pixels, neighbours_of, shown_together
from anofpdm.student.network import StudentConfig, StudentNet, log_odds

FOLDER, TASK, ONNX = "student", "student", "student.onnx"
BATCH = 32

Listener = Callable[[int, int], None]


@dataclass(frozen=True)
class StudentCalibration:
    """From image-level labels."""

    cut: float  # of a slice's score: at or above, it is called unhealthy
    accuracy: float  # on the slices it was chosen on
    auc: float
    n_healthy: int
    n_unhealthy: int
    context_mm: float = CONTEXT_MM  # what it says is smoothed across neighbours, like its teacher's maps
    smallest: int = SMALLEST


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

    def decide(self, pixels: Pixels, places: Places, on_progress: Listener = lambda _done, _total: None) -> Decisions:
        """Slices [n, C, H, W] of its own modalities, by row."""
        calibration = self.calibration
        odds = smoothed(asked(self.network, pixels, places, self.device, on_progress), places, calibration.context_mm)
        score = slice_scores(odds, calibration.smallest) - calibration.cut
        drawn = mask(odds, np.zeros(len(odds)), calibration.smallest)
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
            threshold=np.full(len(odds), 0.5),
        )


def asked(
    network: StudentNet,
    pixels: Pixels,
    places: Places,
    device: torch.device,
    on_progress: Listener = lambda _done, _total: None,
) -> np.ndarray:
    """Log odds of lesion [n, H, W] of every slice."""
    together = neighbours_of(places, network.config.neighbours_mm)
    parts = []
    for start in range(0, len(together), BATCH):
        x = torch.from_numpy(shown_together(pixels, together[start : start + BATCH])).to(device)
        parts.append(log_odds(network, x).cpu().numpy())
        on_progress(min(start + BATCH, len(together)), len(together))
    return np.concatenate(parts)


def slice_scores(odds: np.ndarray, smallest: int) -> np.ndarray:
    """[n]: the log odds that more pixels reach than the smallest lesion has."""
    flat = odds.reshape(len(odds), -1)
    rank = min(flat.shape[1] - 1, smallest_pixels(odds.shape[1:], smallest))
    return np.asarray(-np.partition(-flat, rank, axis=1)[:, rank], dtype=np.float64)


def calibrated(
    network: StudentNet, pixels: Pixels, labels: np.ndarray, places: Places, device: torch.device
) -> StudentCalibration:
    """Where to call a slice unhealthy, from image-level labels alone."""
    known = np.isin(labels, (HEALTHY, UNHEALTHY))
    unhealthy = labels[known] == UNHEALTHY
    if unhealthy.all() or not unhealthy.any():
        raise CalibrationError("a student is calibrated on healthy and unhealthy slices, and one kind is missing")
    odds = smoothed(asked(network, pixels, places, device), places, CONTEXT_MM)
    score = slice_scores(odds, SMALLEST)[known]
    cut = best_cut(-score, unhealthy)
    return StudentCalibration(
        cut=-cut.value,
        accuracy=cut.accuracy,
        auc=auc(score, unhealthy),
        n_healthy=int((~unhealthy).sum()),
        n_unhealthy=int(unhealthy.sum()),
    )


# ---- on disk ---------------------------------------------------------------------------------------------------------


def save_student(model_folder: Path, student: Student, taught: dict[str, Any], *, half: bool = False) -> str:
    said = {
        "format": FORMAT,
        "task": TASK,
        "network": asdict(student.config),
        "calibration": asdict(student.calibration),
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
    if said["teacher_sha256"] != teacher_sha256:
        raise ModelError(
            f"{folder}: was taught by another model than the one beside it; run `anofpdm distill` again, or remove it"
        )
    network = StudentNet(_config(said["network"]))
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except RuntimeError:
        raise ModelError(f"{folder}: its weights are not for the network it names; distill again") from None
    calibration = StudentCalibration(**said["calibration"])
    return Student(network.to(device).eval(), calibration, teacher_sha256, device, digest)


def _config(said: dict[str, Any]) -> StudentConfig:
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items()}
    return StudentConfig(**given)


def channels_of(modalities: Sequence[str], wanted: Sequence[str]) -> list[int]:
    return [list(modalities).index(name) for name in wanted]
