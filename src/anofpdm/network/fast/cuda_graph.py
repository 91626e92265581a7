"""CUDA graphs: a function recorded once and replayed."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class CudaGraph:
    """A function of tensors of fixed shapes, recorded as a CUDA graph: the GPU does not wait for Python."""

    def __init__(self, function: Callable[..., Tensor], inputs: Sequence[Tensor], pool: Any = None):
        """Graphs that share a pool share their memory: results must be copied before the next replay of any of them."""
        self._inputs = [tensor.clone() for tensor in inputs]
        self._device = inputs[0].device  # which need not be the current one
        with torch.cuda.device(self._device):
            self._graph = torch.cuda.CUDAGraph()
            stream = _capture_stream(self._device)
            # Other threads may allocate memory meanwhile, as the one that reads batches does.
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._result = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The result is valid until the next call."""
        with torch.cuda.device(self._device):
            for static, tensor in zip(self._inputs, inputs, strict=True):
                static.copy_(tensor)
            self._graph.replay()
        return self._result


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One per device: a pool is shared only among graphs on the same stream."""
    return torch.cuda.Stream(device)
