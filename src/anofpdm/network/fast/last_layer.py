"""The last norm, SiLU and 3 x 3 convolution in float32 on the GPU, in Triton, straight from half-precision activations.

The method subtracts predictions for two labels, and the last layer's rounding would dominate the difference. A
convolution to so few channels is limited by memory: here every activation is read once and multiplied for all nine taps
at its pixel; then nine small shifted images are added up.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from anofpdm.network.fast.fused_norm import norm_coefficients
from anofpdm.network.fast.norm_passes import load_rows, tile_at

ROWS = 64  # pixels per program


def last_layer(x: Tensor, norm: nn.GroupNorm, conv: nn.Conv2d) -> Tensor:
    """x [N, C, H, W] in any precision -> conv(silu(norm(x))) [N, out, H, W], float32."""
    x = x.contiguous(memory_format=torch.channels_last)
    n, channels, height, width = x.shape
    places, columns = height * width, 9 * len(conv.weight)
    flipped = conv.weight.flip(2, 3).transpose(0, 1)  # [C, out, 3, 3]: the pixel that a tap adds to
    taps = flipped.reshape(channels, columns).contiguous()  # weights may be channels last
    products = taps.new_empty(n, columns, places)
    with torch.cuda.device_of(x):
        _tap_products[(n, triton.cdiv(places, ROWS))](
            *(x, norm_coefficients([x], norm), taps, products, places, channels, columns, ROWS),
            *(triton.next_power_of_2(max(16, channels)), triton.next_power_of_2(max(16, columns))),
        )
    return F.fold(products, (height, width), 3, padding=1) + conv.bias[:, None, None]  # type: ignore[index]


@triton.jit
def _tap_products(
    x, coefficients, taps, products, places, channels, columns,
    ROWS: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Of the active x [N, places, C] and taps [C, columns], as [N, columns, places]."""
    n, channel, column = tl.program_id(0), tl.arange(0, WIDE), tl.arange(0, OUT)
    place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    gain, offset = load_rows(coefficients, 4 * n, channels, channel, channel < channels)
    at, inside = tile_at(place, channel, n, places, channels)
    z = tl.load(x + at, inside, 0.0).to(tl.float32) * gain[None, :] + offset[None, :]
    z = z * tl.sigmoid(z)
    of_taps = (channel[:, None] < channels) & (column[None, :] < columns)
    w = tl.load(taps + channel[:, None] * columns + column[None, :], of_taps, 0.0)
    product = tl.dot(z, w, input_precision="tf32x3")  # three products of 11 bits each: float32 but for the last bits
    to = (n.to(tl.int64) * columns + column[None, :]) * places + place[:, None]
    tl.store(products + to, product, (place[:, None] < places) & (column[None, :] < columns))
