"""Slices with bright discs, and what a student is trained on."""

import numpy as np
import torch

from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.student.student_batches import PseudoLabels
from anofpdm.student.student_network import StudentConfig, neighbour_rows

CPU = torch.device("cpu")
SMALL = StudentConfig(("flair",), 32, width=8, multipliers=(1, 2))


def blobs(count: int = 48, size: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Slices with a bright disc in every second one, and the disc's mask."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    slices = rng.normal(-0.5, 0.1, (count, 1, size, size)).astype(np.float32)
    masks = np.zeros((count, size, size), bool)
    for number in range(0, count, 2):
        cy, cx, r = rng.uniform((10, 10, 4), (22, 22, 7)) * size / 32
        masks[number] = (y - cy) ** 2 + (x - cx) ** 2 < r**2
        slices[number, 0][masks[number]] += 0.8
    return slices, masks


def adjacent(count: int) -> np.ndarray:
    """Rows of each slice, the one below and the one above."""
    return neighbour_rows(SlicePositions(np.zeros(count), np.arange(float(count))), (-1.0, 1.0))


def pseudo_labels(pixels: np.ndarray, masks: np.ndarray, neighbours: np.ndarray | None = None) -> PseudoLabels:
    labels = np.where(masks.any((1, 2)), UNHEALTHY, HEALTHY)
    neighbours = np.arange(len(masks))[:, None] if neighbours is None else neighbours
    return PseudoLabels(pixels.__getitem__, masks * np.uint8(255), neighbours, labels)
