"""The last norm, SiLU and 3 x 3 convolution in float32 on the GPU, in Triton, straight from half-precision activations.

The method subtracts predictions for two labels, and the last layer's rounding would dominate the difference. A
convolution to so few channels is limited by memory: here every activation is read once and multiplied for all nine taps
at its pixel; then nine small shifted images are added up.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from anofpdm.network.fast.fused_norm import norm_coefficients
from anofpdm.network.fast.norm_passes import load_rows, tile_at

ROWS, SUMS = 64, 1024  # pixels per program


def last_layer(x: Tensor, norm: nn.GroupNorm, conv: nn.Conv2d) -> Tensor:
    """x [N, C, H, W] in any precision -> conv(silu(norm(x))) [N, out, H, W], float32."""
    x = x.contiguous(memory_format=torch.channels_last)
    n, channels, height, width = x.shape
    places, out = height * width, len(conv.weight)
    taps = conv.weight.permute(1, 2, 3, 0).reshape(channels, -1).contiguous()  # [C, 9 * out]
    products = taps.new_empty(n, height, width, 9 * out)
    result = taps.new_empty(n, out, height, width)
    with torch.cuda.device_of(x):
        coefficients = norm_coefficients([x], norm)
        _tap_products[(n, triton.cdiv(places, ROWS))](  # contributions of each pixel to its neighbours
            *(x, coefficients, taps, products, places, channels, 9 * out, ROWS),
            *(triton.next_power_of_2(max(16, channels)), triton.next_power_of_2(max(16, 9 * out))),
        )
        _sum_of_shifted[(n * out, triton.cdiv(places, SUMS))](*(products, conv.bias, result, height, width, out, SUMS))
    return result


@triton.jit
def _tap_products(
    x, coefficients, taps, products, places, channels, columns,
    ROWS: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    n, channel, column = tl.program_id(0), tl.arange(0, WIDE), tl.arange(0, OUT)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    gain, offset = load_rows(coefficients, 4 * n, channels, channel, channel < channels)
    at, inside = tile_at(place, channel, n, places, channels)
    z = tl.load(x + at, inside, 0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z = z * tl.sigmoid(z)
    of_taps = (channel[:, None] < channels) & (column[None, :] < columns)
    w = tl.load(taps + channel[:, None] * columns + column[None, :], of_taps, 0.0)
    product = tl.dot(z, w, input_precision="tf32x3")  # three products of 11 bits each: float32 but for the last bits
    to, exists = tile_at(place, column, n, places, columns)
    tl.store(products + to, product, exists)


@triton.jit
def _sum_of_shifted(products, bias, result, height, width, out, ROWS: tl.constexpr):
    """products [N, H, W, 3, 3, out] -> result [N, out, H, W]: tap (i, j) is for the pixel (1 - i, 1 - j) away."""
    n, channel = tl.program_id(0) // out, tl.program_id(0) % out
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    y, x = place // width, place % width
    total = tl.zeros((ROWS,), tl.float32)
    for i in tl.static_range(3):
        for j in tl.static_range(3):
            row, column = y + (i - 1), x + (j - 1)
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = ((n.to(tl.int64) * height + row) * width + column) * 9 * out + (i * 3 + j) * out + channel
            total += tl.load(products + at, inside, 0.0)
    to = tl.program_id(0).to(tl.int64) * height * width + place
    tl.store(result + to, total + tl.load(bias + channel), place < height * width)
