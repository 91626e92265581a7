"""What a student learns from: slices, and for each the mask that its teacher drew. No drawn lesion comes near."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anofpdm.method.context import SlicePositions
from anofpdm.network.training.augment import CHANCES, augment

NEAREST_MM = 2.0  # a slice nearer than that shows nothing new

Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> slices [n, C, H, W] of the student's modalities


@dataclass(frozen=True)
class Lessons:
    """One entry a slice."""

    pixels: Pixels
    masks: np.ndarray  # uint8 [N, H, W], the teacher's, 255 for certain; empty where a person said healthy
    neighbours: np.ndarray  # [N, 1 + neighbours] rows: the slice itself, and those it is shown with
    labels: np.ndarray  # [N], what a person said of the whole slice

    def __len__(self) -> int:
        return len(self.masks)

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        """[n, C * (1 + neighbours), H, W] float32, slice by slice."""
        return shown_together(self.pixels, self.neighbours[rows])

    def batch(
        self, rows: np.ndarray, shown: np.ndarray, generator: torch.Generator, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Inputs as shown and their masks [n, H, W], changed together in the ways that a head can have been."""
        x = torch.from_numpy(shown).to(device)
        mask = torch.from_numpy(self.masks[rows]).to(device, torch.float32)[:, None] / 255
        together = self.neighbours.shape[1]
        chances = torch.rand(len(rows), CHANCES + x.shape[1] // together, generator=generator) * 2 - 1
        brightness = chances[:, CHANCES:].repeat(1, together)  # neighbours are of one scan
        none = torch.zeros(len(rows), 1)  # a mask has no brightness to change
        chances = torch.cat([chances[:, :CHANCES], brightness, none], dim=1)
        changed = augment(torch.cat([x, 2 * mask - 1], dim=1), chances.to(device))
        return changed[:, :-1], (changed[:, -1] + 1) / 2


def shown_together(pixels: Pixels, together: np.ndarray) -> np.ndarray:
    """Rows [n, k] -> [n, k * C, H, W]."""
    flat, place = np.unique(together, return_inverse=True)
    slices = pixels(flat)[place.reshape(together.shape)]  # [n, k, C, H, W]
    return slices.reshape(len(together), -1, *slices.shape[-2:]).astype(np.float32)


def neighbours_of(places: SlicePositions, offsets_mm: tuple[float, ...]) -> np.ndarray:
    """[N, 1 + offsets] rows: each slice, and the one of its scan nearest to each offset; itself where none is near."""
    found = np.tile(np.arange(len(places.scans))[:, None], (1, 1 + len(offsets_mm)))
    for scan in np.unique(places.scans):
        rows = np.flatnonzero(places.scans == scan)
        heights = places.heights_mm[rows]
        for column, offset in enumerate(offsets_mm, start=1):
            gaps = np.abs(heights[:, None] + offset - heights[None, :])  # [n, n]
            nearest = gaps.argmin(axis=1)
            near = gaps[np.arange(len(rows)), nearest] <= abs(offset) / 2
            found[rows, column] = np.where(near, rows[nearest], rows)
    return found


def usual_neighbours(places: SlicePositions) -> tuple[float, float]:
    """The slices on both sides, as far apart as most are."""
    gaps = [np.diff(np.sort(places.heights_mm[places.scans == scan])) for scan in np.unique(places.scans)]
    apart = float(np.median(np.concatenate(gaps))) if any(map(len, gaps)) else 0.0
    return (-max(apart, NEAREST_MM), max(apart, NEAREST_MM))
