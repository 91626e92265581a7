"""Group norm, scale and shift, and SiLU in as few passes over memory as possible, on the GPU, in Triton.

With x as [N, places, C] (channels last in memory), everything but x enters through one gain and one offset per slice
and channel: y = silu(z), z = gain * x + offset. The gradient has the same form: dx = gain * dz + slope * x + level.
So each direction reads its inputs twice, once for sums over places and once to write the result.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from anofpdm.network.fast.norm_passes import (
    apply,
    apply_back,
    gain_and_offset,
    slope_and_level,
    sums_of_dz,
    sums_of_x,
)

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
    with torch.cuda.device_of(x):  # Triton launches on the current device
        result: Tensor = NormSilu.apply(x, weight, bias, scale, shift, groups, activate)
    return result


class NormSilu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        shift: Tensor | None,
        groups: int,
        activate: bool,
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        coefficients = _coefficients([x], weight, bias, groups, scale, shift)
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
        sums_of_dz[(n, splits)](
            *(x, dy, coefficients, sums, places, channels, ctx.activate),
            *_tile(channels, SUM_ELEMENTS),
            num_warps=SUM_WARPS,
        )
        share = channels // ctx.groups
        slope_and_level[(n, ctx.groups)](
            *(sums, weight, bias, *_rows(scale, weight), coefficients, slopes, small),
            *(places, channels, share, n, splits, triton.next_power_of_2(share), scale is not None),
        )
        tiles = (n, triton.cdiv(places, tile[0]))
        apply_back[tiles](x, dy, coefficients, slopes, dx, places, channels, ctx.activate, *tile, num_warps=WARPS)
        dweight, dbias = small[0].sum(0).to(weight.dtype), small[1].sum(0).to(bias.dtype)
        modulation = (None, None) if scale is None else small[2:].to(scale.dtype).unbind()
        return dx, dweight, dbias, *modulation, None, None


def norm_silu_of_two(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor, *, groups: int) -> Tensor:
    """Of the concatenation along the channels, without concatenating. No backward pass."""
    parts = [part.contiguous(memory_format=torch.channels_last) for part in (x, other)]
    with torch.cuda.device_of(x):
        coefficients = _coefficients(parts, weight, bias, groups)
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
        _applied([x], _coefficients([x], weight, bias, groups), y, activate=False)
    return y


def norm_coefficients(x: Tensor, weight: Tensor, bias: Tensor, *, groups: int) -> Tensor:
    """[N, 4, C] float32: gain, offset, mean and 1 / deviation, so that the norm of x is gain * x + offset."""
    with torch.cuda.device_of(x):
        return _coefficients([x], weight, bias, groups)


def _coefficients(
    parts: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    groups: int,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
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
        sums_of_x[(n, splits)](part, sums, places, width, first, channels, *tile, num_warps=SUM_WARPS)
        first += width
    share = channels // groups
    gain_and_offset[(n, groups)](
        *(sums, weight, bias, *_rows(scale, weight), *_rows(shift, weight), coefficients),
        *(places, channels, share, EPSILON, splits, triton.next_power_of_2(share), scale is not None),
    )
    return coefficients


def _rows(values: Tensor | None, unused: Tensor) -> tuple[Tensor, int]:
    """[N, C], and from row to row how far; of none given, any pointer. Half of a wider product is not copied."""
    if values is None:
        return unused, 0
    values = values if values.stride(1) == 1 else values.contiguous()
    return values, values.stride(0)


def _applied(parts: Sequence[Tensor], coefficients: Tensor, y: Tensor, activate: bool) -> None:
    """Into y, whose slices may be longer than those of the parts; channels are last in memory."""
    n, channels, first = len(y), coefficients.shape[2], 0
    places = parts[0].shape[2] * parts[0].shape[3]
    for part in parts:
        tile = _tile(part.shape[1])
        tiles = (n, triton.cdiv(places, tile[0]))
        sizes = (places, part.shape[1], first, channels, y.stride(0))
        apply[tiles](part, coefficients, y, *sizes, activate, *tile, num_warps=WARPS)
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
