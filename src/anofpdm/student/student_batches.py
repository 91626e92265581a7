"""Batches of student training. Each is determined by the seed and the step's number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anofpdm.labels import NULL
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.network.training.batches import shuffled_batches
from anofpdm.student.student_network import BACKGROUND, MISSING, Pixels, stack_slices
from anofpdm.student.thick_slices import draw_weights, mix, own_slices, window_rows
from anofpdm.util.workers import map_in_threads

LOAD = 500  # slices copied to a GPU at once
PASTE_SHARE = 0.5  # of slices without a lesion, into which the lesion of another slice is pasted
MISSING_SHARE = 0.25  # of the slices, for each optional modality
LATE_MISSING_SHARE = 0.5  # of the slices that lack all modalities on which pseudo-labels are not based
NO_LESION = 0.05  # probability that no pixel reaches in a slice without a lesion


@dataclass(frozen=True)
class PseudoLabels:
    """Training slices with the teacher's masks; one entry per slice."""

    pixels: Pixels
    masks: np.ndarray  # uint8 [N, H, W]: probability of lesion times 255; empty where the slice is labelled healthy
    neighbours: np.ndarray  # [N, 1 + neighbours] rows: the slice itself, and its neighbours
    labels: np.ndarray  # [N] image-level labels
    optional: Sequence[int] = ()  # channels of modalities that a scan may lack
    late: Sequence[int] = ()  # those of them that the masks are not based on


class StudentBatch(NamedTuple):
    x: Tensor  # [views, n, k * C, H, W] float32: slices, each with its neighbours; once more as in thick slices
    mask: Tensor  # uint8 [n, H, W]: probability of lesion times 255
    labels: Tensor  # [n]
    chances: Tensor  # [n, CHANCES + k * C + 1] in [-1, 1], for the augmentation
    pasted: Tensor  # bool [n]: whether another slice's lesion is pasted, if the slice has none
    missing: Tensor  # bool [n, k * C]: channels that become background, as where a scan lacks a modality

    def augment(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [views * n, k * C, H, W], their masks [views * n, H, W] in 0 to 1, augmented together, and labels."""
        views = [self._augment_view(x) for x in self.x]  # one by one: lesions are pasted from slice to slice
        x, mask, labels = (torch.cat(parts) for parts in zip(*views, strict=True))
        return x, mask, labels

    def _augment_view(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mask = self.mask.float()[:, None] / 255
        augmented = augment(torch.cat([x, 2 * mask - 1], dim=1), self.chances)
        x, mask, labels = paste_lesions(augmented[:, :-1], (augmented[:, -1] + 1) / 2, self.labels, self.pasted)
        return x.masked_fill(self.missing[:, :, None, None], MISSING), mask, labels


def paste_lesions(x: Tensor, mask: Tensor, labels: Tensor, where: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Blend the previous slice's lesion into slices of the batch that have none, at its place, with the brightness of
    the slice. The label of such a slice becomes unknown: its lesion is synthetic."""
    brain = (x > BACKGROUND).float().amax(1)  # [n, H, W]
    mean = (x * brain[:, None]).sum((2, 3)) / brain.sum((1, 2)).clamp(min=1)[:, None]
    donor, lesion, lighter = x.roll(1, 0), mask.roll(1, 0), (mean - mean.roll(1, 0))[:, :, None, None]
    where = where & (mask.amax((1, 2)) < NO_LESION)
    edge = F.max_pool2d((lesion > 0.5).float()[:, None], 3, 1, 1)
    weight = F.avg_pool2d(edge, 3, 1, 1) * (brain * where[:, None, None])[:, None]  # [n, 1, H, W]
    x = x + weight * ((donor + lighter).clamp(-1, 1) - x)
    labels = labels.masked_fill(where & (lesion.amax((1, 2)) > 0.5), NULL)
    return x, torch.where(where[:, None, None], lesion * brain, mask), labels


def training_batches(
    data: PseudoLabels, batch: int, seed: int, device: torch.device, *, thick_slices: bool = False
) -> Iterator[StudentBatch]:
    """Without end. With thick slices, a batch has all slices as they are, and, augmented alike, as in a scan with
    thicker slices."""
    stacked = data.neighbours.shape[1]
    stacks = window_rows(data.neighbours) if thick_slices else data.neighbours
    batches = shuffled_batches(np.arange(len(stacks)), batch, [seed])
    for step, (rows, x) in enumerate(_read(data.pixels, stacks, batches, device)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        count, modalities = len(rows), x.shape[1] // stacks.shape[1]
        chances = torch.rand(count, CHANCES + modalities, generator=generator) * 2 - 1
        brightness = chances[:, CHANCES:].repeat(1, stacked)  # neighbours have the slice's, and a mask has none
        parts = [
            torch.from_numpy(data.masks[rows]),
            torch.from_numpy(data.labels[rows]),
            torch.cat([chances[:, :CHANCES], brightness, torch.zeros(count, 1)], dim=1),
            torch.rand(count, generator=generator) < PASTE_SHARE,
            draw_missing(count, modalities, data, generator).repeat(1, stacked),
        ]
        views = [x]
        if thick_slices:
            views = [own_slices(x), mix(x, draw_weights(count, generator).to(device, non_blocking=True))]
        yield StudentBatch(torch.stack(views), *(part.to(device, non_blocking=True) for part in parts))


def draw_missing(count: int, modalities: int, data: PseudoLabels, generator: torch.Generator) -> Tensor:
    """bool [count, modalities]: each optional modality is missing in some of the slices, and all late ones together in
    others."""
    missing = torch.zeros(count, modalities, dtype=torch.bool)
    if data.optional:
        missing[:, data.optional] = torch.rand(count, len(data.optional), generator=generator) < MISSING_SHARE
    if data.late:
        missing[:, data.late] |= torch.rand(count, 1, generator=generator) < LATE_MISSING_SHARE
    return missing


def _read(
    pixels: Pixels, stacks: np.ndarray, batches: Iterator[np.ndarray], device: torch.device
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Rows of every batch, and the slices [n, k * C, H, W] of their stacks [N, k]. A GPU keeps all slices in its
    memory, in float16 as cohorts store them, if they take less than half of what is free there. Otherwise slices of the
    next batches are read in the background."""
    count = len(stacks)
    if _fits(2 * count * pixels(np.zeros(1, int)).size, device):
        parts = np.array_split(np.arange(count), -(-count // LOAD))
        slices = torch.cat([torch.from_numpy(pixels(part)).half().to(device) for part in parts])  # [N, C, H, W]
        for rows in batches:
            stack = torch.from_numpy(stacks[rows]).to(device, non_blocking=True)  # [n, k]
            yield rows, slices[stack].flatten(1, 2).float()
        return
    for rows, x in map_in_threads(lambda rows: (rows, stack_slices(pixels, stacks[rows])), batches, 1):
        yield rows, torch.from_numpy(x).to(device)


def _fits(size: int, device: torch.device) -> bool:
    return device.type == "cuda" and size < torch.cuda.mem_get_info(device)[0] / 2
