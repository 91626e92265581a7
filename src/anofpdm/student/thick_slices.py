"""Training slices as they look in a scan with thick slices, resampled to the distance between a slice and its
neighbours: a thick slice is the mean of what it covers, and slices between two thick ones are interpolated."""

import numpy as np
import torch
from torch import Tensor

REACH = 4  # slices on each side that may contribute
THICKNESS = (1.25, 2.75)  # of a thick slice, in distances between neighbours
SLOTS = (0.0, -1.0, 1.0)  # positions of the student's input slices, in the same unit


def window_rows(neighbours: np.ndarray) -> np.ndarray:
    """Rows [N, 3] of each slice, the one below and the one above -> rows [N, 2 * REACH + 1] from below to above."""
    here, below, above = neighbours.T
    down, up = [here], [here]
    for _ in range(REACH):
        down.append(below[down[-1]])
        up.append(above[up[-1]])
    return np.stack([*reversed(down[1:]), *up], axis=1)


def draw_weights(count: int, generator: torch.Generator) -> Tensor:
    """[count, 3, 2 * REACH + 1]: weights of the slices of a window in each input slice. Thickness and position of the
    thick slices are drawn for each."""
    drawn = torch.rand(2, count, generator=generator)[..., None, None]
    thickness = THICKNESS[0] + drawn[0] * (THICKNESS[1] - THICKNESS[0])
    slot, slices = torch.tensor(SLOTS)[:, None], torch.arange(-REACH, REACH + 1.0)
    first = drawn[1] * thickness  # centre of one thick slice; the others follow at their thickness
    lower = first + thickness * torch.floor((slot - first) / thickness)
    between = (slot - lower) / thickness  # 0 at the centre of the lower thick slice, 1 at that of the upper
    weights = (1 - between) * _cover(slices, lower, thickness) + between * _cover(slices, lower + thickness, thickness)
    return weights / weights.sum(-1, keepdim=True)


def _cover(slices: Tensor, centre: Tensor, thickness: Tensor) -> Tensor:
    """Share of a thick slice that each slice fills."""
    low = torch.maximum(slices - 0.5, centre - thickness / 2)
    high = torch.minimum(slices + 0.5, centre + thickness / 2)
    return (high - low).clamp(min=0) / thickness


def mix(x: Tensor, weights: Tensor) -> Tensor:
    """Windows [n, (2 * REACH + 1) * C, H, W] -> inputs [n, 3 * C, H, W]."""
    windows = x.unflatten(1, (weights.shape[-1], -1))
    return torch.einsum("nkj,njchw->nkchw", weights, windows).flatten(1, 2)


def own_slices(x: Tensor) -> Tensor:
    """Windows [n, (2 * REACH + 1) * C, H, W] -> inputs [n, 3 * C, H, W] of the slices as they are."""
    windows = x.unflatten(1, (2 * REACH + 1, -1))
    return windows[:, [REACH + int(slot) for slot in SLOTS]].flatten(1, 2)
