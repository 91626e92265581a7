"""Simplex noise in one pass on the GPU, in Triton: the same as `simplex.py`, much faster.

Positions are kept as integers: pixels, to be divided by the wavelength. Stretching is by -1/6 and squishing by 1/3, so
6 times a stretched position and 3 times the vector to a lattice point are integers too, which float32 holds exactly.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from anofpdm.study.rivals.simplex import (
    FIRST_WAVELENGTH,
    NORM,
    OCTAVES,
    PERSISTENCE,
    lattice_gradients,
    neighbour_offsets,
)

BLOCK, WARPS = 512, 4


def simplex_noise_on_gpu(permutations: Tensor, t: int | Tensor, height: int, width: int) -> Tensor:
    """Permutations [B, 256], one integer level for all or one for each [B] -> [B, height, width] float32."""
    fields, places, device = len(permutations), height * width, permutations.device
    slopes, offsets = torch.stack(lattice_gradients(permutations)), neighbour_offsets()
    out = torch.empty(fields, places, device=device)
    if out.numel():
        levels = torch.as_tensor(t, device=device).to(torch.int32).expand(fields).contiguous()
        neighbours = torch.tensor(offsets, dtype=torch.int32, device=device)
        with torch.cuda.device_of(permutations):  # Triton launches on the current device
            _noise[(fields, triton.cdiv(places, BLOCK))](
                *(permutations.to(torch.int32).contiguous(), slopes, neighbours, levels, out),
                *(places, width, fields, len(offsets), PERSISTENCE, NORM),
                *(OCTAVES, FIRST_WAVELENGTH, BLOCK),
                num_warps=WARPS,
            )
    return out.view(-1, height, width)


@triton.jit
def _noise(
    permutations, slopes, neighbours, levels, out, places, width, fields, count, persistence, norm,
    OCTAVES: tl.constexpr, WAVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < places
    x, y = (place % width).to(tl.float32), (place // width).to(tl.float32)  # in wavelengths, times WAVE
    z = tl.load(levels + n).to(tl.float32)
    table = permutations + n * 256
    slope_x, slope_y, slope_z = slopes + n * 256, slopes + (fields + n) * 256, slopes + (2 * fields + n) * 256
    amplitude = 1.0 / norm
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(OCTAVES):
        along = x + y + z
        base_i = tl.floor((6.0 * x - along) / (6.0 * WAVE))  # the lattice cell that contains the position
        base_j = tl.floor((6.0 * y - along) / (6.0 * WAVE))
        base_k = tl.floor((6.0 * z - along) / (6.0 * WAVE))
        squish = base_i + base_j + base_k  # times 3
        dx = (3.0 * x - WAVE * (3.0 * base_i + squish)) / (3.0 * WAVE)
        dy = (3.0 * y - WAVE * (3.0 * base_j + squish)) / (3.0 * WAVE)
        dz = (3.0 * z - WAVE * (3.0 * base_k + squish)) / (3.0 * WAVE)
        i, j, k = base_i.to(tl.int32), base_j.to(tl.int32), base_k.to(tl.int32)
        value = tl.zeros((BLOCK,), tl.float32)
        for number in range(count):
            a = tl.load(neighbours + 3 * number)
            b = tl.load(neighbours + 3 * number + 1)
            c = tl.load(neighbours + 3 * number + 2)
            shift = (a + b + c).to(tl.float32) / 3.0
            u = dx - (a.to(tl.float32) + shift)
            v = dy - (b.to(tl.float32) + shift)
            w = dz - (c.to(tl.float32) + shift)
            near = tl.maximum(2.0 - u * u - v * v - w * w, 0.0)
            reached = inside & (near > 0.0)
            first = tl.load(table + ((i + a) & 255), reached, 0)
            second = tl.load(table + ((first + j + b) & 255), reached, 0)
            hashed = (second + k + c) & 255
            sloped = u * tl.load(slope_x + hashed, reached, 0.0)
            sloped += v * tl.load(slope_y + hashed, reached, 0.0)
            sloped += w * tl.load(slope_z + hashed, reached, 0.0)
            near = near * near
            value += near * near * sloped
        total += amplitude * value
        amplitude = amplitude * persistence
        x, y, z = 2.0 * x, 2.0 * y, 2.0 * z
    tl.store(out + n.to(tl.int64) * places + place, total, inside)
