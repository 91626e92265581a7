"""Simplex noise: smooth random fields, several octaves summed, for a whole batch at once on any device.

This is OpenSimplex noise (K. Spencer, 2014): the sum, over the points of a skewed lattice within sqrt(2), of
(2 - distance^2)^4 times the value of a linear function whose gradient is random. A permutation of 0..255 hashes lattice
points to gradients.
"""

import functools
import itertools

import torch
from torch import Tensor

from anofpdm.network.fast import has_triton

STRETCH, SQUISH = -1 / 6, 1 / 3  # onto the lattice's own axes, and back
NORM = 103.0  # brings values into about -1 .. 1
OCTAVES, FIRST_WAVELENGTH, PERSISTENCE = 6, 64.0, 0.8


def simplex_noise(permutations: Tensor, t: int | Tensor, height: int, width: int) -> Tensor:
    """Permutations [B, 256] -> [B, height, width]: planes at z = t of B solid fields, all octaves summed.

    One level for all, or one for each [B]. On a GPU with Triton by a kernel.
    """
    device = permutations.device
    if permutations.is_cuda and has_triton():
        from anofpdm.study.rivals.simplex_kernel import simplex_noise_on_gpu

        return simplex_noise_on_gpu(permutations, t, height, width)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    x, y = (axis.flatten().double().to(device) for axis in (x, y))
    z = torch.as_tensor(t, device=device).double().view(-1, 1)
    scales = [2**octave / FIRST_WAVELENGTH for octave in range(OCTAVES)]
    values = (simplex_values(permutations, x * scale, y * scale, z * scale) for scale in scales)
    total = sum(PERSISTENCE**octave * field for octave, field in enumerate(values))
    return torch.as_tensor(total).view(-1, height, width)


def random_permutations(count: int, generator: torch.Generator) -> Tensor:
    """[count, 256]: independent random permutations."""
    return torch.rand(count, 256, generator=generator, device=generator.device).argsort(dim=1)


def simplex_values(permutations: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Permutations [B, 256]; x, y, z broadcasting to [B, P] or, shared by all fields, to [1, P], in wavelengths
    -> [B, P] float32."""
    x, y, z = torch.broadcast_tensors(x, y, z)
    stretch = (x + y + z) * STRETCH
    base = [(axis + stretch).floor() for axis in (x, y, z)]  # the lattice cell that contains the position
    squish = (base[0] + base[1] + base[2]) * SQUISH
    dx, dy, dz = ((axis - cell - squish).float() for axis, cell in zip((x, y, z), base, strict=True))
    i, j, k = (cell.long() for cell in base)
    gradients = lattice_gradients(permutations)
    value = torch.zeros(len(permutations), x.shape[-1], device=x.device)
    for a, b, c in neighbour_offsets():
        shift = (a + b + c) * SQUISH
        u, v, w = dx - (a + shift), dy - (b + shift), dz - (c + shift)  # from the lattice point
        near = (2 - u * u - v * v - w * w).clamp(min=0).square().square()  # 0 if too far
        first = permutations.gather(1, ((i + a) & 255).expand(value.shape))
        second = permutations.gather(1, (first + j + b) & 255)
        hashed = (second + k + c) & 255
        slope_x, slope_y, slope_z = (table.gather(1, hashed) for table in gradients)
        value += near * (slope_x * u + slope_y * v + slope_z * w)
    return value / NORM


def lattice_gradients(permutations: Tensor) -> tuple[Tensor, ...]:
    """Three of [B, 256]: x, y and z of the gradient of each hash value.

    Gradients are the 24 corners of a rhombicuboctahedron: (11, 4, 4) in every order and with every sign.
    """
    corners = [(x, y, z) for z in (1.0, -1.0) for y in (1.0, -1.0) for x in (-1.0, 1.0)]
    lengths = 4.0 + 7.0 * torch.eye(3, device=permutations.device)
    directions = (torch.tensor(corners, device=permutations.device)[:, None] * lengths).view(24, 3)
    return directions[permutations % 24].unbind(-1)


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
