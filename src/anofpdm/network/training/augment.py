"""Augmentation: mirroring, and small rotations, scalings, shifts and changes of brightness."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

TURN = math.radians(10)
GROW = 0.08
SHIFT = 0.05  # fraction of half the image side
GAMMA = 0.2  # log of the exponent
CHANCES = 5  # random numbers per slice, in addition to one per modality


def augment(slices: Tensor, chances: Tensor) -> Tensor:
    """[B, C, H, W] in [-1, 1] and uniform numbers [B, CHANCES + C] in [-1, 1] -> augmented slices."""
    turn, grow, along, across, mirror = chances[:, :CHANCES].unbind(1)
    angle, size = TURN * turn, 1 + GROW * grow
    cosine, sine = angle.cos() / size, angle.sin() / size
    side = torch.where(mirror < 0, -1.0, 1.0).to(slices)
    rows = [
        torch.stack([side * cosine, -sine, SHIFT * along], 1),
        torch.stack([side * sine, cosine, SHIFT * across], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(slices.shape), align_corners=False)
    moved = F.grid_sample(slices + 1, grid, align_corners=False)  # background is 0 here, as is the padding
    gamma = torch.exp(GAMMA * chances[:, CHANCES:])[:, :, None, None]  # [B, C, 1, 1]
    return 2 * (moved / 2).clamp(0, 1).pow(gamma) - 1
