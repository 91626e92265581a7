"""The student's forward pass on a CPU: the same function, with fewer products and less memory traffic.

Upsampled images are not computed (network/fast/upsampled.py). The skip connection is convolved on its own and added,
instead of concatenated. Slices of a batch are divided among threads.
"""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.network.fast.cpu import SliceThreads
from anofpdm.network.fast.upsampled import convolve_by_place, weights_by_place
from anofpdm.student.student_network import StudentNet, predict_passes


class CpuStudent:
    """Callable like the network that it is made from."""

    def __init__(self, network: StudentNet):
        self.network: StudentNet = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module in self.network.modules():
            if isinstance(module, nn.SiLU):
                module.inplace = True
        self.ups = [UpBlock(block) for block in self.network.up]
        self._threads = SliceThreads()

    def passes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `predict_passes`."""
        parts = self._threads.map(partial(predict_passes, self), x)
        of_pixels, of_slices = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return of_pixels, of_slices

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, C, H, W] -> logits of lesion [N, H, W], and of the slice being unhealthy [N]."""
        skips = self.network.encode(x.contiguous(memory_format=torch.channels_last))
        x = skips[-1]
        slice_logits = self.network.slice_logits(x)
        for depth, up in enumerate(self.ups, start=2):
            x = up(x, skips[-depth])
        return self.network.last(x)[:, 0], slice_logits


class UpBlock:
    """Block(cat(upsample(x), skip)), where the skip connection has as many channels as the result."""

    def __init__(self, block: nn.Module):
        first, *self.rest = block.children()
        weight: Tensor = first.weight  # type: ignore[assignment]
        self.width = len(weight)
        self.skip_weight = weight[:, -self.width :].contiguous(memory_format=torch.channels_last)
        self.weight = weights_by_place(weight[:, : -self.width])

    def __call__(self, x: Tensor, skip: Tensor) -> Tensor:
        """x [N, C, H, W], skip [N, width, 2 H, 2 W] -> [N, width, 2 H, 2 W]."""
        result = F.conv2d(skip, self.skip_weight, padding=1)
        for (a, b), part in convolve_by_place(x, self.weight):
            result[:, :, a::2, b::2] += part
        for layer in self.rest:
            result = layer(result)
        return result
