"""The last norm, SiLU and 3 x 3 convolution in float32 on the GPU, in Triton, straight from half-precision activations.

The method subtracts predictions for two labels, and the last layer's rounding would dominate the difference. A
convolution to so few channels is limited by memory: here every activation is read once and multiplied for all nine taps
at its pixel; then nine small shifted images are added up.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from anofpdm.network.kernels.fused_norm import norm_coefficients

ROWS = 64  # pixels per program


def last_layer(x: Tensor, norm: nn.GroupNorm, conv: nn.Conv2d) -> Tensor:
    """x [N, C, H, W] in any precision -> conv(silu(norm(x))) [N, out, H, W], float32."""
    x = x.contiguous(memory_format=torch.channels_last)
    n, channels, height, width = x.shape
    coefficients = norm_coefficients(x, norm.weight, norm.bias, groups=norm.num_groups)
    taps = conv.weight.float().permute(1, 2, 3, 0).reshape(channels, -1).contiguous()  # [C, 9 * out]
    columns = taps.shape[1]
    products = x.new_empty((n, height, width, columns), dtype=torch.float32)
    grid = (n, triton.cdiv(height * width, ROWS))
    with torch.cuda.device_of(x):
        _tap_products[grid](
            *(x, coefficients, taps, products, height * width, channels, columns, ROWS),
            *(triton.next_power_of_2(max(16, channels)), triton.next_power_of_2(max(16, columns))),
        )
    result = _shifted_sum(products.view(n, height, width, 3, 3, -1))
    if conv.bias is not None:
        result = result + conv.bias
    return result.permute(0, 3, 1, 2).contiguous()


def _shifted_sum(products: Tensor) -> Tensor:
    """[N, H, W, 3, 3, out]: contributions of each pixel to its neighbours -> [N, H, W, out]."""
    n, height, width, _, _, out = products.shape
    padded = products.new_zeros(n, height + 2, width + 2, out)
    for i in range(3):
        for j in range(3):
            padded[:, 2 - i : 2 - i + height, 2 - j : 2 - j + width] += products[:, :, :, i, j]
    return padded[:, 1:-1, 1:-1]


@triton.jit
def _tap_products(
    x, coefficients, taps, products, places, channels, columns,
    ROWS: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    n, channel, column = tl.program_id(0), tl.arange(0, WIDE), tl.arange(0, OUT)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    gain = tl.load(coefficients + n * 4 * channels + channel, channel < channels, 0.0)
    offset = tl.load(coefficients + (n * 4 + 1) * channels + channel, channel < channels, 0.0)
    inside = (place[:, None] < places) & (channel[None, :] < channels)
    at = (n.to(tl.int64) * places + place[:, None]) * channels + channel[None, :]
    z = tl.load(x + at, inside, 0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z = z * tl.sigmoid(z)
    there = (channel[:, None] < channels) & (column[None, :] < columns)
    w = tl.load(taps + channel[:, None] * columns + column[None, :], there, 0.0)
    found = tl.dot(z, w, input_precision="tf32x3")  # three products of 11 bits each: float32 but for the last bits
    to = (n.to(tl.int64) * places + place[:, None]) * columns + column[None, :]
    tl.store(products + to, found, (place[:, None] < places) & (column[None, :] < columns))
