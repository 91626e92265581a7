"""The student's logits of slices, in batches that fit in memory.

On a CPU the network is the same function, with fewer products and less memory traffic: upsampled images are not
computed (network/fast/upsampled.py), the skip connection is convolved on its own and added instead of concatenated, and
slices of a batch are divided among threads.
"""

import copy
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.method.context import SlicePositions
from anofpdm.network.fast.cpu import SliceThreads
from anofpdm.network.fast.upsampled import convolve_by_place, weights_by_place
from anofpdm.student.student_network import Pixels, StudentNet, mirror_passes, neighbour_rows, stack_slices
from anofpdm.util.memory import in_batches_that_fit
from anofpdm.util.progress import Progress, silent

BATCH, BATCH_ON_CPU = 32, 8  # slices


@torch.no_grad()
def predict_passes(
    network: StudentNet, pixels: Pixels, positions: SlicePositions, device: torch.device, progress: Progress = silent
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of lesion [n, 2, H, W], and of the slice being unhealthy [n, 2]: of every slice and its mirror image."""
    rows = neighbour_rows(positions, network.config.neighbours_mm)
    on_cpu = device.type == "cpu"
    predict, batch = (CpuStudent(network).passes, BATCH_ON_CPU) if on_cpu else (partial(mirror_passes, network), BATCH)
    size = network.config.size
    pixel_logits = np.empty((len(rows), 2, size, size), np.float32)
    slice_logits = np.empty((len(rows), 2), np.float32)

    def predict_some(some: np.ndarray) -> list[np.ndarray]:
        return [logits.cpu().numpy() for logits in predict(torch.from_numpy(stack_slices(pixels, some)).to(device))]

    for done, (of_pixels, of_slices) in in_batches_that_fit(predict_some, rows, batch):
        some = slice(done - len(of_slices), done)
        pixel_logits[some], slice_logits[some] = of_pixels, of_slices
        progress("Segmenting", done, len(rows))
    return pixel_logits, slice_logits


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
        """As `mirror_passes`."""
        parts = self._threads.map(torch.no_grad()(partial(mirror_passes, self)), x)
        pixel_logits, slice_logits = (torch.cat(part) for part in zip(*parts, strict=True))
        return pixel_logits, slice_logits

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
        width = len(weight)
        self.skip_weight = weight[:, -width:].contiguous(memory_format=torch.channels_last)
        self.weight = weights_by_place(weight[:, :-width])

    def __call__(self, x: Tensor, skip: Tensor) -> Tensor:
        """x [N, C, H, W], skip [N, width, 2 H, 2 W] -> [N, width, 2 H, 2 W]."""
        result = F.conv2d(skip, self.skip_weight, padding=1)
        for (a, b), part in convolve_by_place(x, self.weight):
            result[:, :, a::2, b::2] += part
        for layer in self.rest:
            result = layer(result)
        return result
