"""Group norm, scale and shift, and SiLU in as few passes over memory as possible, on the GPU, in Triton.

With x as [N, places, C] (channels last in memory), everything but x enters through one gain and one offset per slice
and channel: y = silu(z), z = gain * x + offset. The gradient has the same form: dx = gain * dz + slope * x + level.
So each direction reads its inputs twice, once for sums over places and once to write the result.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

EPSILON = 1e-5
ELEMENTS, WARPS = 4096, 8  # of a tile that is written
SUM_ELEMENTS, SUM_WARPS = 2048, 4  # of a tile that is added up; these and the next measured on an H200
SUM_PROGRAMS, MOST_SPLITS = 1024, 128  # with more, adding up the partial sums takes longer than computing them


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
        coefficients = _coefficients([x], weight, bias, scale, shift, groups)
        y = torch.empty_like(x)
        _applied([x], coefficients, y, activate)
        ctx.save_for_backward(x, weight, bias, scale, coefficients)
        ctx.groups, ctx.activate = groups, activate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, coefficients = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        n, channels, height, width = x.shape
        places, tile, splits = height * width, _tile(channels), _splits([x])
        sums = x.new_empty((n, splits, 2, channels), dtype=torch.float32)
        slopes = x.new_empty((n, 2, channels), dtype=torch.float32)  # slope and level
        small = x.new_empty((4, n, channels), dtype=torch.float32)  # gradients of weight, bias, scale and shift
        dx = torch.empty_like(x)
        _sums_of_dz[(n, splits)](
            *(x, dy, coefficients, sums, places, channels, ctx.activate),
            *_tile(channels, SUM_ELEMENTS),
            num_warps=SUM_WARPS,
        )
        share = channels // ctx.groups
        _slope_and_level[(n, ctx.groups)](
            *(sums, weight, bias, scale, coefficients, slopes, small),
            *(places, channels, share, n, splits, triton.next_power_of_2(share)),
        )
        tiles = (n, triton.cdiv(places, tile[0]))
        _apply_back[tiles](x, dy, coefficients, slopes, dx, places, channels, ctx.activate, *tile, num_warps=WARPS)
        dweight, dbias = small[0].sum(0).to(weight.dtype), small[1].sum(0).to(bias.dtype)
        return dx, dweight, dbias, small[2].to(scale.dtype), small[3].to(scale.dtype), None, None


def norm_silu_of_two(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor, *, groups: int) -> Tensor:
    """Of the concatenation along the channels, without concatenating. No backward pass."""
    parts = [part.contiguous(memory_format=torch.channels_last) for part in (x, other)]
    with torch.cuda.device_of(x):
        none = x.new_zeros(len(x), len(weight))
        coefficients = _coefficients(parts, weight, bias, none, none, groups)
        shape = (len(x), len(weight), *x.shape[2:])
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        _applied(parts, coefficients, y, activate=True)
    return y


def norm_tokens(x: Tensor, weight: Tensor, bias: Tensor, *, groups: int) -> Tensor:
    """The norm of x [N, C, H, W] as [N, H * W + 1, C]; the last of each slice is not set. No backward pass."""
    x = x.contiguous(memory_format=torch.channels_last)
    n, channels, height, width = x.shape
    y = x.new_empty(n, height * width + 1, channels)
    with torch.cuda.device_of(x):
        none = x.new_zeros(n, channels)
        _applied([x], _coefficients([x], weight, bias, none, none, groups), y, activate=False)
    return y


def norm_coefficients(x: Tensor, weight: Tensor, bias: Tensor, *, groups: int) -> Tensor:
    """[N, 4, C] float32: gain, offset, mean and 1 / deviation, so that the norm of x is gain * x + offset."""
    with torch.cuda.device_of(x):
        none = x.new_zeros(x.shape[:2])
        return _coefficients([x], weight, bias, none, none, groups)


def _coefficients(
    parts: Sequence[Tensor], weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, groups: int
) -> Tensor:
    """Of tensors that are consecutive parts of the channels, each with its channels last in memory."""
    n, channels, places = len(parts[0]), len(weight), parts[0].shape[2] * parts[0].shape[3]
    splits = _splits(parts)
    sums = weight.new_empty((n, splits, 2, channels), dtype=torch.float32)
    coefficients = weight.new_empty((n, 4, channels), dtype=torch.float32)
    first = 0
    for part in parts:
        width = part.shape[1]
        tile = _tile(width, SUM_ELEMENTS)
        _sums_of_x[(n, splits)](part, sums, places, width, first, channels, *tile, num_warps=SUM_WARPS)
        first += width
    share = channels // groups
    _gain_and_offset[(n, groups)](
        *(sums, weight, bias, scale, shift, coefficients),
        *(places, channels, share, EPSILON, splits, triton.next_power_of_2(share)),
    )
    return coefficients


def _applied(parts: Sequence[Tensor], coefficients: Tensor, y: Tensor, activate: bool) -> None:
    """Into y, whose slices may be longer than those of the parts; channels are last in memory."""
    n, channels, first = len(y), coefficients.shape[2], 0
    places = parts[0].shape[2] * parts[0].shape[3]
    for part in parts:
        tile = _tile(part.shape[1])
        tiles = (n, triton.cdiv(places, tile[0]))
        sizes = (places, part.shape[1], first, channels, y.stride(0))
        _apply[tiles](part, coefficients, y, *sizes, activate, *tile, num_warps=WARPS)
        first += part.shape[1]


def _tile(channels: int, elements: int = ELEMENTS) -> tuple[int, int]:
    """Pixels and channels that a program processes at a time."""
    wide = triton.next_power_of_2(channels)
    return max(1, elements // wide), wide


def _splits(parts: Sequence[Tensor]) -> int:
    """Programs that share the sums of a slice, a power of two."""
    n, _, height, width = parts[0].shape
    tiles = triton.cdiv(height * width, min(_tile(part.shape[1], SUM_ELEMENTS)[0] for part in parts))
    wanted = min(MOST_SPLITS, tiles, max(1, SUM_PROGRAMS // n))
    return 1 << (wanted.bit_length() - 1)


@triton.jit
def _tile_at(place, channel, n, places, channels):
    """Offsets and mask of the tile [place, channel] of slice n in a tensor [N, places, C]."""
    inside = (place[:, None] < places) & (channel[None, :] < channels)
    return n.to(tl.int64) * places * channels + place[:, None] * channels + channel[None, :], inside


@triton.jit
def _sums_of_x(x, sums, places, channels, first, row, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """Writes channels from `first` on of sums [N, splits, 2, row]."""
    n, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    channel = tl.arange(0, WIDE)
    total, squares = tl.zeros((ROWS, WIDE), tl.float32), tl.zeros((ROWS, WIDE), tl.float32)
    for start in range(split * ROWS, places, splits * ROWS):
        at, inside = _tile_at(start + tl.arange(0, ROWS), channel, n, places, channels)
        values = tl.load(x + at, inside, 0.0).to(tl.float32)
        total += values
        squares += values * values
    out = sums + ((n * splits + split) * 2) * row + first + channel
    tl.store(out, tl.sum(total, 0), channel < channels)
    tl.store(out + row, tl.sum(squares, 0), channel < channels)


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
def _apply(
    x, coefficients, y, places, channels, first, row, stride,
    ACTIVATE: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Writes channels from `first` on of y [N, places, row]; from slice to slice, y advances by `stride`."""
    n, channel = tl.program_id(0), tl.arange(0, WIDE)
    gain = tl.load(coefficients + n * 4 * row + first + channel, channel < channels, 0.0)
    offset = tl.load(coefficients + (n * 4 + 1) * row + first + channel, channel < channels, 0.0)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at, inside = _tile_at(place, channel, n, places, channels)
    z = tl.load(x + at, inside, 0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    if ACTIVATE:
        z = z * tl.sigmoid(z)
    to = n.to(tl.int64) * stride + place[:, None] * row + first + channel[None, :]
    tl.store(y + to, z.to(y.dtype.element_ty), inside)


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
