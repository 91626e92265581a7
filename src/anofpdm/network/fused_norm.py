"""Group norm, scale and shift, SiLU in as few passes over memory as there can be, on the GPU, in Triton.

With x as [N, places, C] (channels last in memory), everything but x enters through one gain and one offset per slice
and channel: y = silu(z), z = gain * x + offset. The way back has the same form: dx = gain * dz + slope * x + level.
So each direction reads its inputs twice, once for sums over places and once to write the result.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

EPSILON = 1e-5
ELEMENTS = 4096  # of a tile
WARPS = 8
MOST_SPLITS = 128  # programs that share the sums of one slice


def norm_silu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    groups: int,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    activate: bool = True,
) -> Tensor:
    """x [N, C, H, W]; weight and bias [C]; scale and shift [N, C] or neither; without `activate`, no SiLU."""
    if scale is None or shift is None:
        scale = shift = x.new_zeros(x.shape[:2])
    with torch.cuda.device_of(x):  # Triton launches on the current device
        result: Tensor = NormSilu.apply(x, weight, bias, scale.contiguous(), shift.contiguous(), groups, activate)
    return result


class NormSilu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, groups: int, activate: bool
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        n, channels, places, tile, splits = _sizes(x)
        sums = x.new_empty((n, splits, 2, channels), dtype=torch.float32)
        coefficients = x.new_empty((n, 4, channels), dtype=torch.float32)  # gain, offset, mean, 1 / deviation
        y = torch.empty_like(x)
        _sums_of_x[(n, splits)](x, sums, places, channels, *tile, num_warps=WARPS)
        share = channels // groups
        _gain_and_offset[(n, groups)](
            *(sums, weight, bias, scale, shift, coefficients),
            *(places, channels, share, EPSILON, splits, triton.next_power_of_2(share)),
        )
        tiles = (n, triton.cdiv(places, tile[0]))
        _apply[tiles](x, coefficients, y, places, channels, activate, *tile, num_warps=WARPS)
        ctx.save_for_backward(x, weight, bias, scale, coefficients)
        ctx.groups, ctx.activate = groups, activate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, coefficients = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        n, channels, places, tile, splits = _sizes(x)
        sums = x.new_empty((n, splits, 2, channels), dtype=torch.float32)
        slopes = x.new_empty((n, 2, channels), dtype=torch.float32)  # slope and level
        small = x.new_empty((4, n, channels), dtype=torch.float32)  # gradients of weight, bias, scale and shift
        dx = torch.empty_like(x)
        _sums_of_dz[(n, splits)](x, dy, coefficients, sums, places, channels, ctx.activate, *tile, num_warps=WARPS)
        share = channels // ctx.groups
        _slope_and_level[(n, ctx.groups)](
            *(sums, weight, bias, scale, coefficients, slopes, small),
            *(places, channels, share, n, splits, triton.next_power_of_2(share)),
        )
        tiles = (n, triton.cdiv(places, tile[0]))
        _apply_back[tiles](x, dy, coefficients, slopes, dx, places, channels, ctx.activate, *tile, num_warps=WARPS)
        dweight, dbias = small[0].sum(0).to(weight.dtype), small[1].sum(0).to(bias.dtype)
        return dx, dweight, dbias, small[2].to(scale.dtype), small[3].to(scale.dtype), None, None


def _sizes(x: Tensor) -> tuple[int, int, int, tuple[int, int], int]:
    """Slices, channels, places; the tile (places, channels) that a program holds; programs for the sums of a slice."""
    n, channels, height, width = x.shape
    wide = triton.next_power_of_2(channels)
    tile = max(1, ELEMENTS // wide), wide
    splits = min(MOST_SPLITS, triton.next_power_of_2(triton.cdiv(height * width, tile[0])))
    return n, channels, height * width, tile, splits


@triton.jit
def _tile_at(place, channel, n, places, channels):
    """Offsets and mask of the tile [place, channel] of slice n in a tensor [N, places, C]."""
    inside = (place[:, None] < places) & (channel[None, :] < channels)
    return n.to(tl.int64) * places * channels + place[:, None] * channels + channel[None, :], inside


@triton.jit
def _sums_of_x(x, sums, places, channels, ROWS: tl.constexpr, WIDE: tl.constexpr):
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channel = tl.arange(0, WIDE)
    total, squares = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(split * ROWS, places, splits * ROWS):
        at, inside = _tile_at(start + tl.arange(0, ROWS), channel, n, places, channels)
        values = tl.load(x + at, inside, 0.0).to(tl.float32)
        total += values
        squares += values * values
    out = sums + ((n * splits + split) * 2) * channels + channel
    tl.store(out, tl.sum(total, 0), channel < channels)
    tl.store(out + channels, tl.sum(squares, 0), channel < channels)


@triton.jit
def _group_sums(sums, n, channel, here, channels, SPLITS: tl.constexpr):
    """Both sums of a group's channels, over all splits."""
    split = n * SPLITS + tl.arange(0, SPLITS)
    at = split[:, None] * 2 * channels + channel[None, :]
    return tl.sum(tl.load(sums + at, here[None, :], 0.0), 0), tl.sum(
        tl.load(sums + at + channels, here[None, :], 0.0), 0
    )


@triton.jit
def _gain_and_offset(
    sums, weight, bias, scale, shift, coefficients, places, channels, share, epsilon,
    SPLITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    n, within = tl.program_id(0), tl.arange(0, WIDE)
    channel, here = tl.program_id(1) * share + within, within < share
    total, squares = _group_sums(sums, n, channel, here, channels, SPLITS)
    count = places * share
    mean = tl.sum(total, 0) / count
    spread = 1.0 / tl.sqrt(tl.maximum(tl.sum(squares, 0) / count - mean * mean, 0.0) + epsilon)
    w, b = tl.load(weight + channel, here, 0.0).to(tl.float32), tl.load(bias + channel, here, 0.0).to(tl.float32)
    more = 1.0 + tl.load(scale + n * channels + channel, here, 0.0).to(tl.float32)
    offset = (b - mean * spread * w) * more + tl.load(shift + n * channels + channel, here, 0.0).to(tl.float32)
    out = coefficients + n * 4 * channels + channel
    tl.store(out, spread * w * more, here)
    tl.store(out + channels, offset, here)
    tl.store(out + 2 * channels, tl.zeros((WIDE,), tl.float32) + mean, here)
    tl.store(out + 3 * channels, tl.zeros((WIDE,), tl.float32) + spread, here)


@triton.jit
def _apply(x, coefficients, y, places, channels, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    gain = tl.load(coefficients + n * 4 * channels + channel, channel < channels, 0.0)
    offset = tl.load(coefficients + (n * 4 + 1) * channels + channel, channel < channels, 0.0)
    at, inside = _tile_at(tl.program_id(1) * ROWS + tl.arange(0, ROWS), channel, n, places, channels)
    z = tl.load(x + at, inside, 0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    if ACTIVATE:
        z = z * tl.sigmoid(z)
    tl.store(y + at, z.to(y.dtype.element_ty), inside)


@triton.jit
def _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE: tl.constexpr):
    """x and the gradient of the loss with respect to z, from the gradient with respect to silu(z)."""
    gain = tl.load(coefficients + n * 4 * channels + channel, channel < channels, 0.0)
    offset = tl.load(coefficients + (n * 4 + 1) * channels + channel, channel < channels, 0.0)
    values = tl.load(x + at, inside, 0.0).to(tl.float32)
    dz = tl.load(dy + at, inside, 0.0).to(tl.float32)
    if ACTIVATE:
        z = values * gain[None, :] + offset[None, :]
        s = tl.sigmoid(z)
        dz = dz * s * (1.0 + z * (1.0 - s))
    return values, dz, gain


@triton.jit
def _sums_of_dz(
    x, dy, coefficients, sums, places, channels, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channel = tl.arange(0, WIDE)
    total, weighted = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(split * ROWS, places, splits * ROWS):
        at, inside = _tile_at(start + tl.arange(0, ROWS), channel, n, places, channels)
        values, dz, _ = _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE)
        total += dz
        weighted += dz * values
    out = sums + ((n * splits + split) * 2) * channels + channel
    tl.store(out, tl.sum(total, 0), channel < channels)
    tl.store(out + channels, tl.sum(weighted, 0), channel < channels)


@triton.jit
def _slope_and_level(
    sums, weight, bias, scale, coefficients, slopes, small, places, channels, share, slices,
    SPLITS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    n, within = tl.program_id(0), tl.arange(0, WIDE)
    channel, here = tl.program_id(1) * share + within, within < share
    total, weighted = _group_sums(sums, n, channel, here, channels, SPLITS)
    mean = tl.load(coefficients + (n * 4 + 2) * channels + channel, here, 0.0)
    spread = tl.load(coefficients + (n * 4 + 3) * channels + channel, here, 0.0)
    w, b = tl.load(weight + channel, here, 0.0).to(tl.float32), tl.load(bias + channel, here, 0.0).to(tl.float32)
    more = 1.0 + tl.load(scale + n * channels + channel, here, 0.0).to(tl.float32)
    normal = spread * (weighted - mean * total)  # sum of dz * (x - mean) / deviation
    count = places * share
    slope = -spread * spread * (tl.sum(w * more * normal, 0) / count)
    level = -spread * (tl.sum(w * more * total, 0) / count) - slope * mean
    tl.store(slopes + n * 2 * channels + channel, slope, here)
    tl.store(slopes + (n * 2 + 1) * channels + channel, level, here)
    out = small + n * channels + channel
    tl.store(out, more * normal, here)
    tl.store(out + slices * channels, more * total, here)
    tl.store(out + 2 * slices * channels, w * normal + b * total, here)
    tl.store(out + 3 * slices * channels, total, here)


@triton.jit
def _apply_back(
    x, dy, coefficients, slopes, dx, places, channels, ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    slope = tl.load(slopes + n * 2 * channels + channel, channel < channels, 0.0)
    level = tl.load(slopes + (n * 2 + 1) * channels + channel, channel < channels, 0.0)
    at, inside = _tile_at(tl.program_id(1) * ROWS + tl.arange(0, ROWS), channel, n, places, channels)
    values, dz, gain = _values_and_dz(x, dy, coefficients, at, inside, n, channel, channels, ACTIVATE)
    result = gain[None, :] * dz + slope[None, :] * values + level[None, :]
    tl.store(dx + at, result.to(dx.dtype.element_ty), inside)
