"""The lattice of simplex noise: constants and tables shared by the torch and Triton implementations."""

import functools
import itertools

import torch
from torch import Tensor

STRETCH, SQUISH = -1 / 6, 1 / 3  # onto the lattice's own axes, and back
NORM = 103.0  # brings values into about -1 .. 1
OCTAVES, FIRST_WAVELENGTH, PERSISTENCE = 6, 64.0, 0.8

Triple = tuple[Tensor, Tensor, Tensor]


def lattice_gradients(permutations: Tensor) -> Triple:
    """Three of [B, 256]: x, y and z of the gradient of each hash value."""
    directions = torch.tensor(_directions(), device=permutations.device)  # [24, 3]
    x, y, z = directions[permutations % len(directions)].unbind(-1)
    return x, y, z


@functools.cache
def _directions() -> list[tuple[float, float, float]]:
    """The 24 corners of a rhombicuboctahedron: (11, 4, 4) in every order and with every sign."""
    signs = [(x, y, z) for z in (1, -1) for y in (1, -1) for x in (-1, 1)]
    return [
        tuple(sign * (11.0 if axis == long else 4.0) for axis, sign in enumerate(corner))  # type: ignore[misc]
        for corner in signs
        for long in range(3)
    ]


@functools.cache
def neighbour_offsets() -> list[tuple[int, int, int]]:
    """Lattice points, relative to the corner of a cell, within sqrt(2) of some position in the cell."""
    share = torch.linspace(0, 1, 25)
    inside = torch.stack(torch.meshgrid(share, share, share, indexing="ij"), -1).view(-1, 3)  # on the lattice's axes
    positions = inside + inside.sum(1, keepdim=True) * SQUISH
    offsets = []
    for a, b, c in itertools.product((-1, 0, 1, 2), repeat=3):
        point = a, b, c
        corner = torch.tensor(point) + sum(point) * SQUISH
        if (positions - corner).square().sum(1).min() < 2:
            offsets.append(point)
    return offsets
