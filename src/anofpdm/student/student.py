"""A trained student: predicts masks and decisions of a scan's slices. It is saved in its teacher's folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anofpdm.choices import WeightFormat
from anofpdm.errors import ConfigError, MethodError, ModelError
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import Decisions
from anofpdm.network.checkpoint import FORMAT, WEIGHTS, load_model, save_model, weights_must_fit
from anofpdm.network.weight_format import store
from anofpdm.scans.expects import ScanExpectation
from anofpdm.student.decide import CALIBRATED, MaskChoices, ScanDecision, StudentCalibration, StudentDecision, map_scans
from anofpdm.student.predict import predict_passes
from anofpdm.student.student_network import Pixels, StudentConfig, StudentNet, neighbour_rows
from anofpdm.student.typical import TypicalScans
from anofpdm.util.artifacts import convert, to_plain
from anofpdm.util.progress import Progress, silent

FOLDER, TASK = "student", "student"
TYPICAL = "typical."  # prefix of the tensors of the check for scans unlike those in training


@dataclass(frozen=True)
class StudentFile:
    """What config.json holds, besides the hash."""

    network: StudentConfig
    calibration: StudentCalibration
    teacher_sha256: str
    expects: ScanExpectation = field(default_factory=ScanExpectation)
    foreground: tuple[float, float] = (0.0, 1.0)  # smallest and largest fraction among the scans in calibration
    typical: dict[str, float] | None = None  # limits of the check for scans unlike those in training
    distillation: dict[str, Any] = field(default_factory=dict)  # provenance
    format: int = FORMAT
    task: str = TASK

    def __post_init__(self) -> None:
        low, high = self.foreground
        if not 0 <= low <= high <= 1:
            raise ValueError(f"foreground {self.foreground}")


@dataclass(frozen=True)
class Student:
    network: StudentNet
    calibration: StudentCalibration
    teacher_sha256: str
    device: torch.device
    sha256: str = ""
    expects: ScanExpectation = field(default_factory=ScanExpectation)
    foreground: tuple[float, float] = (0.0, 1.0)
    typical: TypicalScans | None = None
    choices: MaskChoices = CALIBRATED

    @property
    def config(self) -> StudentConfig:
        return self.network.config

    def decide(self, pixels: Pixels, positions: SlicePositions, progress: Progress = silent) -> Decisions:
        """Masks and detections of a scan's slices."""
        rows = neighbour_rows(positions, self.config.neighbours_mm)
        return self.decide_from(*predict_passes(self.network, pixels, rows, self.device, progress), positions)

    def decide_from(self, passes: np.ndarray, slice_passes: np.ndarray, positions: SlicePositions) -> Decisions:
        """From the logits that `predict_passes` returns; on the CPU, wherever they were computed."""
        decision = StudentDecision(self.calibration, self.config.size, self.choices)
        decided = map_scans(decision, positions, passes, slice_passes)
        values: dict[str, Any] = dict(zip(ScanDecision._fields, decided, strict=True))
        return Decisions(**values, log_odds=values["score"])


def save_student(
    model_folder: Path,
    student: Student,
    provenance: Mapping[str, Any],
    weights: WeightFormat = WeightFormat.FLOAT32,
) -> None:
    tensors, typical = store(student.network.state_dict(), weights), student.typical
    if typical is not None:
        tensors |= {TYPICAL + name: torch.from_numpy(array) for name, array in typical.arrays().items()}
    file = StudentFile(
        student.config,
        student.calibration,
        student.teacher_sha256,
        student.expects,
        student.foreground,
        None if typical is None else dict(typical.limits),
        dict(provenance),
    )
    folder = model_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    save_model(folder, tensors, to_plain(file))


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
    arrays = {name.removeprefix(TYPICAL): weights.pop(name).numpy() for name in [*weights] if name.startswith(TYPICAL)}
    try:
        file = convert(StudentFile, payload)
        network = StudentNet(file.network)
        typical = None if file.typical is None else TypicalScans(file.network.modalities, file.typical, **arrays)
    except (ConfigError, MethodError, TypeError, ValueError) as problem:
        raise ModelError(f"{folder}: damaged, or of another version ({problem}); distill again, or remove it") from None
    with weights_must_fit(folder, "distill again"):
        network.load_state_dict(weights)
    return Student(
        network.to(device).eval(),
        file.calibration,
        file.teacher_sha256,
        device,
        digest,
        file.expects,
        file.foreground,
        typical,
    )
