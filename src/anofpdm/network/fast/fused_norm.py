"""Group norm, scale and shift, and SiLU in as few passes over memory as possible, on the GPU, in Triton.

With x as [N, places, C] (channels last in memory), everything but x enters through one gain and one offset per slice
and channel: y = silu(z), z = gain * x + offset. The gradient has the same form: dx = gain * dz + slope * x + level.
So each direction reads its inputs twice, once for sums over places and once to write the result.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from anofpdm.network.fast.norm_passes import (
    apply,
    apply_back,
    gain_and_offset,
    slope_and_level,
    sums_over_places,
)

ELEMENTS, WARPS = 4096, 8  # of a tile that is written
SUM_ELEMENTS, SUM_WARPS = 2048, 4  # of a tile that is added up; these and the next measured on an H200
SUM_PROGRAMS, MOST_SPLITS = 1024, 128  # with more, adding up the partial sums takes longer than computing them


def norm_silu(
    x: Tensor, norm: nn.GroupNorm, scale: Tensor | None = None, shift: Tensor | None = None, *, activate: bool = True
) -> Tensor:
    """x [N, C, H, W]; scale and shift [N, C] or neither; without `activate`, no SiLU."""
    with torch.cuda.device_of(x):  # Triton launches on the current device
        result: Tensor = NormSilu.apply(x, norm.weight, norm.bias, scale, shift, norm, activate)
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
        norm: nn.GroupNorm,
        activate: bool,
    ) -> Tensor:
        """Weight and bias are those of the norm, given so that they get gradients."""
        x = _channels_last(x)
        coefficients = norm_coefficients([x], norm, scale, shift)
        y = torch.empty_like(x)
        _apply_to([x], coefficients, y, activate)
        ctx.save_for_backward(x, weight, bias, scale, coefficients)
        ctx.groups, ctx.activate = norm.num_groups, activate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, coefficients = ctx.saved_tensors
        dy = _channels_last(dy)
        n, channels, height, width = x.shape
        places, splits, share = height * width, _splits([x]), channels // ctx.groups
        sums = x.new_empty((n, splits, 2, channels), dtype=torch.float32)
        slopes = x.new_empty((n, 2, channels), dtype=torch.float32)  # slope and level
        small = x.new_empty((4, n, channels), dtype=torch.float32)  # gradients of weight, bias, scale and shift
        dx = torch.empty_like(x)
        sums_over_places[(n, splits)](
            *(x, dy, coefficients, sums, places, channels, 0, channels, True, ctx.activate),
            *_tile(channels, SUM_ELEMENTS),
            num_warps=SUM_WARPS,
        )
        slope_and_level[(n, ctx.groups)](
            *(sums, weight, bias, *_rows(scale, weight), coefficients, slopes, small),
            *(places, channels, share, n, splits, triton.next_power_of_2(share), scale is not None),
        )
        tile = _tile(channels, ELEMENTS)
        tiles = (n, triton.cdiv(places, tile[0]))
        apply_back[tiles](x, dy, coefficients, slopes, dx, places, channels, ctx.activate, *tile, num_warps=WARPS)
        dweight, dbias = small[:2].sum(1)
        modulation = (None, None) if scale is None else small[2:].to(scale.dtype)
        return dx, dweight.to(weight.dtype), dbias.to(bias.dtype), *modulation, None, None


def norm_silu_of_two(x: Tensor, skip: Tensor, norm: nn.GroupNorm) -> Tensor:
    """Of the concatenation along the channels, without concatenating. No backward pass."""
    shape = (len(x), norm.num_channels, *x.shape[2:])
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return _normalise([_channels_last(x), _channels_last(skip)], norm, y, activate=True)


def norm_tokens(x: Tensor, norm: nn.GroupNorm) -> Tensor:
    """The norm of x [N, C, H, W] as [N, H * W + 1, C]; the last of each slice is not set. No backward pass."""
    n, channels, height, width = x.shape
    return _normalise([_channels_last(x)], norm, x.new_empty(n, height * width + 1, channels), activate=False)


def _normalise(parts: Sequence[Tensor], norm: nn.GroupNorm, y: Tensor, *, activate: bool) -> Tensor:
    """Into y, which is returned."""
    with torch.cuda.device_of(y):
        _apply_to(parts, norm_coefficients(parts, norm), y, activate)
    return y


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def norm_coefficients(
    parts: Sequence[Tensor], norm: nn.GroupNorm, scale: Tensor | None = None, shift: Tensor | None = None
) -> Tensor:
    """[N, 4, C] float32: gain, offset, mean and 1 / deviation, so that the norm of x is gain * x + offset; of tensors
    that are consecutive parts of the channels, each with its channels last in memory."""
    weight, bias, channels = norm.weight, norm.bias, norm.num_channels
    n, places, splits = len(parts[0]), parts[0][0, 0].numel(), _splits(parts)
    sums = weight.new_empty((n, splits, 2, channels), dtype=torch.float32)
    coefficients = weight.new_empty((n, 4, channels), dtype=torch.float32)
    first = 0
    for part in parts:
        width = part.shape[1]
        sums_over_places[(n, splits)](
            *(part, part, coefficients, sums, places, width, first, channels, False, False),
            *_tile(width, SUM_ELEMENTS),
            num_warps=SUM_WARPS,
        )
        first += width
    share = channels // norm.num_groups
    gain_and_offset[(n, norm.num_groups)](
        *(sums, weight, bias, *_rows(scale, weight), *_rows(shift, weight), coefficients),
        *(places, channels, share, norm.eps, splits, triton.next_power_of_2(share), scale is not None),
    )
    return coefficients


def _rows(values: Tensor | None, unused: Tensor) -> tuple[Tensor, int]:
    """[N, C], and from row to row how far, as it can be half of a wider tensor; of none given, any pointer."""
    return (unused, 0) if values is None else (values, values.stride(0))


def _apply_to(parts: Sequence[Tensor], coefficients: Tensor, y: Tensor, activate: bool) -> None:
    """Into y, whose slices may be longer than those of the parts; channels are last in memory."""
    n, channels, places, first = len(y), coefficients.shape[2], parts[0][0, 0].numel(), 0
    for part in parts:
        width = part.shape[1]
        tile = _tile(width, ELEMENTS)
        tiles = (n, triton.cdiv(places, tile[0]))
        sizes = (places, width, first, channels, y.stride(0))
        apply[tiles](part, coefficients, y, *sizes, activate, *tile, num_warps=WARPS)
        first += width


def _tile(channels: int, elements: int) -> tuple[int, int]:
    """Pixels and channels that a program processes at a time."""
    wide = triton.next_power_of_2(channels)
    return max(1, elements // wide), wide


def _splits(parts: Sequence[Tensor]) -> int:
    """Programs that share the sums of a slice, a power of two."""
    n, _, height, width = parts[0].shape
    tiles = triton.cdiv(height * width, min(_tile(part.shape[1], SUM_ELEMENTS)[0] for part in parts))
    wanted = min(MOST_SPLITS, tiles, max(1, SUM_PROGRAMS // n))
    return 1 << (wanted.bit_length() - 1)
