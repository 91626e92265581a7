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

from anofpdm.network.fast.cpu import SliceThreads
from anofpdm.network.fast.upsampled import convolve_by_place, weights_by_place
from anofpdm.student.student_network import Pixels, StudentNet, mirror_passes, stack_slices
from anofpdm.util.memory import in_batches_that_fit
from anofpdm.util.progress import Progress, silent

BATCH, BATCH_ON_CPU = 32, 8  # slices


@torch.no_grad()
def predict_passes(
    network: StudentNet, pixels: Pixels, rows: np.ndarray, device: torch.device, progress: Progress = silent
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of lesion [n, 2, H, W], and of the slice being unhealthy [n, 2]: of every slice and its mirror image.
    `rows` as of `neighbour_rows`."""
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
    """A copy of the network."""

    def __init__(self, network: StudentNet):
        self.network: StudentNet = copy.deepcopy(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network.up = nn.ModuleList(map(CpuUpBlock, self.network.up))
        for module in self.network.modules():
            if isinstance(module, nn.SiLU):
                module.inplace = True
        self._threads = SliceThreads()

    def passes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `mirror_passes`."""
        x = x.contiguous(memory_format=torch.channels_last)
        parts = self._threads.map(torch.no_grad()(partial(mirror_passes, self.network)), x)
        pixel_logits, slice_logits = (torch.cat(part) for part in zip(*parts, strict=True))
        return pixel_logits, slice_logits


class CpuUpBlock(nn.Module):
    """As the UpBlock that it is made from, whose skip connection has as many channels as the result."""

    def __init__(self, block: nn.Module):
        super().__init__()
        first, *rest = block.children()
        self.rest = nn.ModuleList(rest)
        weight: Tensor = first.weight  # type: ignore[assignment]
        width = len(weight)
        self.skip_weight = weight[:, -width:].contiguous(memory_format=torch.channels_last)
        self.weight = weights_by_place(weight[:, :-width])

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        result = F.conv2d(skip, self.skip_weight, padding=1)
        for (a, b), part in convolve_by_place(x, self.weight):
            result[:, :, a::2, b::2] += part
        for layer in self.rest:
            result = layer(result)
        return result
