"""A function recorded once and replayed."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Recorded:
    """A function of tensors of fixed shapes, recorded as a CUDA graph: the GPU does not wait for Python any more."""

    def __init__(self, function: Callable[..., Tensor], inputs: Sequence[Tensor], pool: Any = None):
        """Recordings that share a pool share their memory: their results must be copied before the next replay."""
        self._inputs = [tensor.clone() for tensor in inputs]
        self._device = inputs[0].device  # which need not be the current one
        with torch.cuda.device(self._device):
            self._graph = torch.cuda.CUDAGraph()
            stream = _capture_stream(self._device)
            # Other threads may go on with memory of their own, as the one that reads slices ahead does.
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._result = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The result lives until the next call."""
        with torch.cuda.device(self._device):
            for place, tensor in zip(self._inputs, inputs, strict=True):
                place.copy_(tensor)
            self._graph.replay()
        return self._result


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One a device: memory of a pool is shared only among recordings on the same stream."""
    return torch.cuda.Stream(device)
