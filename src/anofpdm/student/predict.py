"""The student's logits of the slices of a scan, in batches that fit in memory."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from anofpdm.method.context import SlicePositions
from anofpdm.student.cpu_passes import CpuStudent
from anofpdm.student.student_network import Pixels, StudentNet, neighbour_rows, predict_passes, stack_slices
from anofpdm.util.memory import in_batches_that_fit
from anofpdm.util.progress import Progress, silent

BATCH, BATCH_ON_CPU = 32, 8  # slices


def predict_slices(
    network: StudentNet,
    pixels: Pixels,
    positions: SlicePositions,
    device: torch.device,
    progress: Progress = silent,
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of lesion [n, H, W] of every slice, and of the slice being unhealthy [n]."""
    batches = _predict_batches(network, pixels, positions, device, progress)
    means = [(of_pixels.mean(axis=0), of_slices.mean(axis=0)) for of_pixels, of_slices in batches]
    pixel_logits, slice_logits = (np.concatenate(part) for part in zip(*means, strict=True))
    return pixel_logits, slice_logits


def predict_both(
    network: StudentNet,
    pixels: Pixels,
    positions: SlicePositions,
    device: torch.device,
    progress: Progress = silent,
) -> tuple[np.ndarray, np.ndarray]:
    """[2, n, H, W] and [2, n]: as `predict_slices`, of the slices and of their mirror images, not averaged."""
    batches = _predict_batches(network, pixels, positions, device, progress)
    of_pixels, of_slices = (np.concatenate(part, axis=1) for part in zip(*batches, strict=True))
    return of_pixels, of_slices


def _predict_batches(
    network: StudentNet, pixels: Pixels, positions: SlicePositions, device: torch.device, progress: Progress
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rows = neighbour_rows(positions, network.config.neighbours_mm)
    on_cpu = device.type == "cpu"
    passes, batch = (CpuStudent(network).passes, BATCH_ON_CPU) if on_cpu else (partial(predict_passes, network), BATCH)

    def predict(some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        of_pixels, of_slices = passes(torch.from_numpy(stack_slices(pixels, some)).to(device))
        return of_pixels.cpu().numpy(), of_slices.cpu().numpy()

    for done, logits in in_batches_that_fit(predict, rows, batch):
        yield logits
        progress("Segmenting", done, len(rows))
