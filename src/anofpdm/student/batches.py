"""Batches of student training. Each is determined by the seed and the step's number."""

import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.student.targets import PseudoLabels

LOAD = 500  # slices copied to a GPU at once


class StudentBatch(NamedTuple):
    x: Tensor  # [n, k * C, H, W] float32: slices, each with its neighbours
    mask: Tensor  # uint8 [n, H, W]: probability of lesion times 255
    labels: Tensor  # [n]
    chances: Tensor  # [n, CHANCES + k * C + 1] in [-1, 1], for the augmentation

    def augment(self) -> tuple[Tensor, Tensor]:
        """Inputs [n, k * C, H, W] and their masks [n, H, W] in 0 to 1, augmented together."""
        mask = self.mask.float()[:, None] / 255
        augmented = augment(torch.cat([self.x, 2 * mask - 1], dim=1), self.chances)
        return augmented[:, :-1], (augmented[:, -1] + 1) / 2


def training_batches(data: PseudoLabels, batch: int, seed: int, device: torch.device) -> Iterator[StudentBatch]:
    """Without end. A GPU keeps all slices in its memory if they take less than half of what is free there."""
    rows_of_steps = (rows_of_step(len(data), step, batch, seed) for step in itertools.count())
    inputs = _from_gpu(data, rows_of_steps, device) if _fits(data, device) else _from_files(data, rows_of_steps, device)
    for step, (rows, x) in enumerate(inputs):
        mask, labels = torch.from_numpy(data.masks[rows]), torch.from_numpy(data.labels[rows])
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        chances = draw_chances(len(rows), x.shape[1], data.neighbours.shape[1], generator)
        yield StudentBatch(x, *(part.to(device, non_blocking=True) for part in (mask, labels, chances)))


def rows_of_step(count: int, step: int, batch: int, seed: int) -> np.ndarray:
    """[batch]: every slice once per epoch, reshuffled each time."""
    positions = np.arange(step * batch, (step + 1) * batch)
    rows = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(positions // count):
        here = positions // count == epoch
        rows[here] = _order(count, seed, int(epoch))[positions[here] % count]
    return rows


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


def draw_chances(count: int, channels: int, stacked: int, generator: torch.Generator) -> Tensor:
    """[count, CHANCES + channels + 1]; neighbours have the slice's brightness, and a mask has none."""
    chances = torch.rand(count, CHANCES + channels // stacked, generator=generator) * 2 - 1
    brightness = chances[:, CHANCES:].repeat(1, stacked)
    return torch.cat([chances[:, :CHANCES], brightness, torch.zeros(count, 1)], dim=1)


def _fits(data: PseudoLabels, device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    needed = (data.neighbours.max() + 1) * data.pixels(np.zeros(1, int)).size * 2  # bytes in float16
    return bool(needed < torch.cuda.mem_get_info(device)[0] / 2)


def _from_gpu(
    data: PseudoLabels, rows_of_steps: Iterator[np.ndarray], device: torch.device
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Rows and inputs of every step. Slices are kept in float16, as cohorts store them."""
    every = np.arange(data.neighbours.max() + 1)
    parts = [torch.from_numpy(data.pixels(every[start : start + LOAD])).half() for start in every[::LOAD]]
    slices = torch.cat([part.to(device) for part in parts])  # [N, C, H, W]
    for rows in rows_of_steps:
        neighbours = torch.from_numpy(data.neighbours[rows]).to(device, non_blocking=True)  # [n, k]
        yield rows, slices[neighbours].flatten(1, 2).float()


def _from_files(
    data: PseudoLabels, rows_of_steps: Iterator[np.ndarray], device: torch.device
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Rows and inputs of every step; those of the next step are read in the background."""
    with ThreadPoolExecutor(1) as reader:
        pending = reader.submit(_read, data, next(rows_of_steps))
        for rows in rows_of_steps:
            current = pending.result()
            pending = reader.submit(_read, data, rows)
            yield current[0], torch.from_numpy(current[1]).to(device)


def _read(data: PseudoLabels, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rows, data.inputs(rows)
