"""Time of a student for a whole scan: from two files of full size to a mask in native space."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from anofpdm.method.detection import CurveDetector
from anofpdm.scans import write_nifti
from anofpdm.segment.model import Model
from anofpdm.segment.outputs import MASK
from anofpdm.student.decide import StudentCalibration
from anofpdm.student.student import Student
from anofpdm.student.student_network import StudentConfig, StudentNet

SHAPE, SIDE = (240, 240, 155), 128
MODALITIES = ("flair", "t2")
NEIGHBOURS_MM = (-2.0, 2.0)


def scan_seconds(device: torch.device, shape: tuple[int, int, int] = SHAPE) -> float:
    """Of the second run, when kernels are chosen and files are cached."""
    model = random_model(device)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.nii.gz" for name in MODALITIES}
        for seed, file in enumerate(files.values()):
            write_nifti(file, *random_head(seed, shape))
        for _ in range(2):
            start = time.perf_counter()
            result = model.segment(files)
            write_nifti(Path(folder) / MASK, result.mask.astype(np.uint8), result.grid)
            seconds = time.perf_counter() - start
    return seconds


def random_head(seed: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Noise in an ellipsoid of the size of a brain, and the affine."""
    axes = np.ogrid[tuple(slice(-1, 1, complex(0, n)) for n in shape)]
    inside = sum((axis / radius) ** 2 for axis, radius in zip(axes, (0.58, 0.72, 0.88), strict=True)) < 1
    noise = np.random.default_rng(seed).normal(300, 60, shape)
    return np.where(inside, noise, 0).clip(0).astype(np.int16), np.diag([-1.0, -1.0, 1.0, 1.0])


def random_model(device: torch.device) -> Model:
    """A student with random weights."""
    torch.manual_seed(0)
    network = StudentNet(StudentConfig(MODALITIES, SIDE, NEIGHBOURS_MM)).to(device).eval()
    zeros = np.zeros(2)
    detector = CurveDetector(zeros, zeros + 1, zeros, offset=-1.0, strength=1.0)
    network.last.weight.data.zero_()  # detects nothing: noise would give thousands of findings
    return Model(None, Student(network, StudentCalibration(detector, 1.0, 1.0, 1, 1), "", device))
