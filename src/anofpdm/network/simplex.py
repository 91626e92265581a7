"""Simplex noise: smooth random fields, several octaves summed, for a whole batch at once on any device.

This is OpenSimplex noise (K. Spencer, 2014): the sum, over the points of a skewed lattice within sqrt(2), of
(2 - distance^2)^4 times the value of a linear function whose gradient is random. A permutation of 0..255 hashes lattice
points to gradients. Constants and tables are shared with the Triton kernel.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anofpdm.network.fast import has_triton

STRETCH, SQUISH = -1 / 6, 1 / 3  # onto the lattice's own axes, and back
NORM = 103.0  # brings values into about -1 .. 1
OCTAVES, FIRST_WAVELENGTH, PERSISTENCE = 6, 64.0, 0.8

Triple = tuple[Tensor, Tensor, Tensor]


def simplex_noise(permutations: Tensor, t: int | Tensor, height: int, width: int) -> Tensor:
    """Permutations [B, 256] -> [B, height, width]: planes at z = t of B solid fields, all octaves summed.

    On a GPU with Triton by a kernel. Otherwise one level for all is much cheaper than one for each ([B]), as all fields
    then share their geometry.
    """
    if permutations.is_cuda and has_triton():
        from anofpdm.network.fast.simplex_kernel import simplex_noise_on_gpu

        return simplex_noise_on_gpu(permutations, t, height, width)
    total = torch.zeros(len(permutations), height * width, device=permutations.device)
    for octave in range(OCTAVES):
        if isinstance(t, int):
            values = _plane(t, octave, height, width, permutations.device).values(permutations)
        else:
            x, y = _pixels(octave, height, width, permutations.device)
            values = simplex_values(permutations, x, y, t.double()[:, None] * 2**octave / FIRST_WAVELENGTH)
        total += PERSISTENCE**octave * values
    return total.view(-1, height, width)


def _pixels(octave: int, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """x and y of every pixel [P], in wavelengths of this octave."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    scale = 2**octave / FIRST_WAVELENGTH
    return (x.flatten().double() * scale).to(device), (y.flatten().double() * scale).to(device)


def random_permutations(count: int, generator: torch.Generator) -> Tensor:
    """[count, 256]: independent random permutations."""
    return torch.rand(count, 256, generator=generator, device=generator.device).argsort(dim=1)


def simplex_values(permutations: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Permutations [B, 256]; x, y, z broadcasting to [B, P], in wavelengths -> [B, P] float32."""
    x, y, z = torch.broadcast_tensors(x, y, z)
    gradients = lattice_gradients(permutations)
    value = torch.zeros(len(permutations), x.shape[-1], device=x.device)
    for (u, v, w), points, near in _contributions(x, y, z):
        hashed = _hashed(permutations, *(point.expand_as(value) for point in points))
        gradient = [table.gather(1, hashed) for table in gradients]
        value += near * (gradient[0] * u + gradient[1] * v + gradient[2] * w)
    return value / NORM


def _contributions(x: Tensor, y: Tensor, z: Tensor) -> Iterator[tuple[Triple, Triple, Tensor]]:
    """For each lattice point near a position: the vector from it, the point itself, and its weight (0 if too far)."""
    stretch = (x + y + z) * STRETCH
    base = [(axis + stretch).floor() for axis in (x, y, z)]  # the lattice cell that contains the position
    squish = (base[0] + base[1] + base[2]) * SQUISH
    dx, dy, dz = ((axis - cell - squish).float() for axis, cell in zip((x, y, z), base, strict=True))
    i, j, k = (cell.long() for cell in base)
    for a, b, c in neighbour_offsets():
        shift = (a + b + c) * SQUISH
        u, v, w = dx - (a + shift), dy - (b + shift), dz - (c + shift)
        near = (2 - u * u - v * v - w * w).clamp(min=0)
        yield (u, v, w), (i + a, j + b, k + c), near.square().square()


@dataclass(frozen=True)
class Plane:
    """Lattice points that contribute to each pixel of a plane, and their weights: the same for every permutation."""

    points: Triple  # each [L]
    rows: Tensor  # [P, 3 C], in the table of gradients
    weights: Tensor  # [P, 3 C]

    def values(self, permutations: Tensor) -> Tensor:
        """[B, 256] -> [B, P]."""
        if len(permutations) == 1:  # a single field's terms would be added in another order, with other last digits
            return self.values(permutations.expand(2, -1))[:1]
        hashed = _hashed(permutations, *(point.expand(len(permutations), -1) for point in self.points))  # [B, L]
        table = torch.cat([axis.gather(1, hashed) for axis in lattice_gradients(permutations)], dim=1)  # [B, 3 L]
        return F.embedding_bag(self.rows, table.T.contiguous(), per_sample_weights=self.weights, mode="sum").T / NORM


@functools.lru_cache(maxsize=OCTAVES)
def _plane(t: int, octave: int, height: int, width: int, device: torch.device) -> Plane:
    x, y = _pixels(octave, height, width, device)
    z = torch.full_like(x, t * 2**octave / FIRST_WAVELENGTH)
    vectors, points, nears = zip(*_contributions(x, y, z), strict=True)
    near = torch.stack(nears, 1)  # [P, neighbours]
    order = near.argsort(dim=1, descending=True)[:, : int((near > 0).sum(1).max())]  # those within reach, C at most
    lattice = torch.stack([torch.stack(axis, 1).gather(1, order) for axis in zip(*points, strict=True)], -1)
    unique, index = _unique_points(lattice.view(-1, 3))
    index = index.view(order.shape)  # [P, C]
    weights = [torch.stack(axis, 1).gather(1, order) * near.gather(1, order) for axis in zip(*vectors, strict=True)]
    rows = torch.cat([index + number * len(unique) for number in range(3)], dim=1)
    i, j, k = unique.T
    return Plane((i, j, k), rows, torch.cat(weights, dim=1))


def _unique_points(points: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [N, 3] -> the different rows [L, 3] in order, and the index [N] of each row among them.

    `Tensor.unique(dim=0)` gives the same, but takes ten times as long.
    """
    first = points.amin(0)
    _, height, depth = (points.amax(0) - first + 1).tolist()
    i, j, k = (points - first).T
    numbers, index = ((i * height + j) * depth + k).unique(return_inverse=True)
    row, k = numbers // depth, numbers % depth
    return torch.stack([row // height, row % height, k], 1) + first, index


def _hashed(permutations: Tensor, i: Tensor, j: Tensor, k: Tensor) -> Tensor:
    """[B, P]: the hash, 0..255, of each lattice point."""
    first = permutations.gather(1, (i & 255).expand(len(permutations), -1))
    second = permutations.gather(1, (first + j) & 255)
    return (second + k) & 255


def lattice_gradients(permutations: Tensor) -> Triple:
    """Three of [B, 256]: x, y and z of the gradient of each hash value.

    Gradients are the 24 corners of a rhombicuboctahedron: (11, 4, 4) in every order and with every sign.
    """
    corners = [(x, y, z) for z in (1.0, -1.0) for y in (1.0, -1.0) for x in (-1.0, 1.0)]
    lengths = 4.0 + 7.0 * torch.eye(3, device=permutations.device)
    directions = (torch.tensor(corners, device=permutations.device)[:, None] * lengths).view(24, 3)
    x, y, z = directions[permutations % 24].unbind(-1)
    return x, y, z


@functools.cache
def neighbour_offsets() -> list[tuple[int, int, int]]:
    """Lattice points, relative to the corner of a cell, within sqrt(2) of some position in the cell."""
    share = torch.linspace(0, 1, 25)
    inside = torch.stack(torch.meshgrid(share, share, share, indexing="ij"), -1).view(-1, 3)  # on the lattice's axes
    positions = inside + inside.sum(1, keepdim=True) * SQUISH
    return [
        (a, b, c)
        for a, b, c in itertools.product((-1, 0, 1, 2), repeat=3)
        if (positions - (torch.tensor((a, b, c)) + (a + b + c) * SQUISH)).square().sum(1).min() < 2
    ]
