"""3 x 3 convolutions with a quarter of the multiplications, for CPUs (Winograd's minimal filtering, F(4 x 4, 3 x 3)).

A convolution of 4 x 4 pixels is a product in 6 x 6 points: the 6 x 6 pixels around them are transformed to points, each
point is multiplied by its transformed weight, and the sums over channels are transformed back. Rounding errors are ten
times those of a direct convolution, a hundredth of those of half precision.
"""

import functools
import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OUT, IN = 4, 6  # pixels along a side: computed, and read
MIN_CHANNELS = 64  # below, the transforms take longer than they save
FASTER_ON = ("aarch64",)  # docs/benchmarks.md; Macs ("arm64") have not been measured

PIXELS_TO_POINTS = torch.tensor(
    [
        [4.0, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ]
)
WEIGHTS_TO_POINTS = (
    torch.tensor([[6.0, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], dtype=torch.float64) / 24
)
POINTS_TO_PIXELS = torch.tensor([[1.0, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])


class WinogradConvolution(nn.Module):
    """Computes the same as `convolution`; for inference."""

    def __init__(self, convolution: nn.Conv2d):
        super().__init__()
        self.direct = convolution

    @functools.cached_property
    def weight(self) -> Tensor:
        """[36, C, out]; four times the memory of the convolution's, and only needed where the network is used."""
        weight = self.direct.weight.detach().double()  # [out, C, 3, 3]
        points = torch.einsum("ij,ocjk,lk->ilco", WEIGHTS_TO_POINTS, weight, WEIGHTS_TO_POINTS)
        return points.flatten(0, 1).float()

    def forward(self, x: Tensor) -> Tensor:
        """x [N, C, H, W]; directly where the sides are no multiples of 4."""
        n, channels, height, width = x.shape
        rows, columns = height // OUT, width // OUT
        if (height, width) != (OUT * rows, OUT * columns):
            result: Tensor = self.direct(x)
            return result
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))  # [N, H + 2, W + 2, C]
        tiles = padded.unfold(1, IN, OUT).unfold(2, IN, OUT).permute(4, 5, 0, 1, 2, 3)  # [6, 6, N, rows, columns, C]
        points = transform(PIXELS_TO_POINTS, tiles.reshape(IN, IN, -1))
        sums = torch.bmm(points.view(IN * IN, -1, channels), self.weight)  # [36, N * rows * columns, out]
        pixels = transform(POINTS_TO_PIXELS, sums.view(IN, IN, -1)).view(OUT, OUT, n, rows, columns, -1)
        return pixels.permute(2, 3, 0, 4, 1, 5).reshape(n, height, width, -1).permute(0, 3, 1, 2)


def transform(matrix: Tensor, x: Tensor) -> Tensor:
    """Along both sides: matrix [m, 6], x [6, 6, M] -> [m, m, M]."""
    rows = (matrix @ x.flatten(1)).view(-1, *x.shape[1:])  # [m, 6, M]
    return matrix @ rows


def is_faster_here() -> bool:
    return platform.machine() in FASTER_ON


def use_winograd(network: nn.Module) -> None:
    """Replaces the convolutions that it makes faster."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Conv2d and suits(child):
                setattr(module, name, WinogradConvolution(child))


def suits(convolution: nn.Conv2d) -> bool:
    """Of the network's convolutions, those of 3 x 3 pixels have a padding of 1."""
    return (
        (convolution.kernel_size, convolution.stride, convolution.bias) == ((3, 3), (1, 1), None)
        and convolution.in_channels >= MIN_CHANNELS
        and convolution.out_channels >= MIN_CHANNELS // 2
    )
