"""A 3 x 3 convolution of an image upsampled by 2 (nearest neighbour), without the upsampled image.

It equals four 2 x 2 convolutions of the image itself, one for each place in a 2 x 2 block of the result: 16 products
per pixel of the image in place of 36. Used on CPUs.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Along one axis: [place in the block, tap of the small kernel, tap of the large kernel], 1 where both meet one pixel.
TAPS = torch.tensor([[[1.0, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]])


class UpsampledConvolution(nn.Module):
    """Of an image, what `convolution` computes of the upsampled image; for inference."""

    def __init__(self, convolution: nn.Conv2d):
        super().__init__()
        self.weight = weights_by_place(convolution.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        """x [N, C, H, W] -> [N, out, 2 H, 2 W]."""
        n, _, height, width = x.shape
        out = len(self.weight) // 4
        result = x.new_empty(n, out, 2 * height, 2 * width).contiguous(memory_format=torch.channels_last)
        for (a, b), part in convolve_by_place(x, self.weight):
            result[:, :, a::2, b::2] = part
        return result


def weights_by_place(weight: Tensor) -> Tensor:
    """[out, C, 3, 3] -> [4 * out, C, 2, 2], in the order of the places."""
    by_place = torch.einsum("apy,bqx,kcyx->abkcpq", TAPS, TAPS, weight)
    return by_place.flatten(0, 2).contiguous(memory_format=torch.channels_last)


def convolve_by_place(x: Tensor, weight: Tensor) -> Iterator[tuple[tuple[int, int], Tensor]]:
    """x [N, C, H, W] -> the place (row, column) in a block, and the pixels of the result there, [N, out, H, W]."""
    height, width = x.shape[2:]
    parts = F.conv2d(x, weight, padding=1).chunk(4, dim=1)  # each [N, out, H + 1, W + 1]
    for place, part in enumerate(parts):
        a, b = divmod(place, 2)
        yield (a, b), part[:, :, a : a + height, b : b + width]
