"""A small student, untrained, that needs FLAIR and takes T1 and T2 where they are given."""

from pathlib import Path

import numpy as np
import torch

from anofpdm.method.detection import CurveDetector
from anofpdm.student.decide import StudentCalibration
from anofpdm.student.student import Student, save_student
from anofpdm.student.student_network import StudentConfig, StudentNet
from tests import toys

CPU = torch.device("cpu")
SIZE, SHAPE = 32, (28, 30, 14)
CHANNELS, OPTIONAL = ("t1", "flair", "t2"), ("t1", "t2")  # the needed one is not the first channel
NEIGHBOURS_MM = (-4.0, 4.0)
FEW = -1.5  # bias of the lesion logits


def make_student(
    sha256: str = "teacher", channels=CHANNELS, optional=OPTIONAL, size: int = SIZE, bias: float | None = FEW
) -> Student:
    """Every slice is called unhealthy; masks have no smallest size. With `FEW` they cover little."""
    torch.manual_seed(1)
    network = StudentNet(StudentConfig(channels, size, NEIGHBOURS_MM, 8, (1, 2), optional)).eval()
    if bias is not None:
        torch.nn.init.constant_(network.last.bias, bias)
    detector = CurveDetector(np.zeros(2), np.ones(2), np.zeros(2), offset=1.0, strength=1.0)
    return Student(network, StudentCalibration(detector, 1.0, 1.0, 5, 5, smallest=0), sha256, CPU)


def save_model(folder: Path, **changes) -> Path:
    """A student alone, which is a whole model."""
    save_student(folder, make_student(**changes), {})
    return folder


def scan_files(folder: Path, name: str = "p", modalities=CHANNELS, shape=SHAPE) -> dict[str, Path]:
    affine = toys.affine_of(spacing=(5.0, 5.0, 4.0), shape=shape)
    seeds = {"t1": 1, "flair": 2, "t2": 3}
    heads = {modality: toys.head(shape, seeds[modality]) for modality in modalities}
    return {modality: toys.save(folder / f"{name}_{modality}.nii.gz", head, affine) for modality, head in heads.items()}
