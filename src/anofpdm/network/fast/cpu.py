"""What differs between CPUs."""

import contextlib
import platform
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

SLOW_GRADIENTS = ("aarch64", "arm64")
MOST_PARTS = 8  # of a batch; a CPU's batch has 8 slices


@contextlib.contextmanager
def fast_gradients(device: torch.device) -> Iterator[None]:
    """For the backward pass. On ARM, oneDNN's gradients of convolutions take 1.4 to 3.5 times as long as torch's own;
    its forward pass, with channels last, does not (docs/benchmarks.md)."""
    if device.type != "cpu" or platform.machine() not in SLOW_GRADIENTS:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on flags that are not changed
        with torch.backends.mkldnn.flags(enabled=False):
            yield


class SliceThreads:
    """Computes parts of a batch in threads of their own, instead of every layer in several threads: layers have no
    thread to wait for, which costs most when other programs use the cores."""

    def __init__(self, threads: int | None = None):
        threads = threads or torch.get_num_threads()
        self.count = min(threads, MOST_PARTS)
        self._each = threads // self.count  # threads for the layers of a part
        self._pool = ThreadPoolExecutor(self.count, "slices", initializer=torch.set_num_threads, initargs=(self._each,))

    def map(self, function: Callable[..., T], *batches: Tensor) -> list[T]:
        """Results of `function` for consecutive parts of the batches. It must turn off gradients itself: `no_grad` does
        not hold in other threads."""
        if self.count == 1 or len(batches[0]) < self.count:
            return [function(*batches)]
        before = torch.get_num_threads()
        torch.set_num_threads(self._each)
        try:
            return list(self._pool.map(function, *(batch.tensor_split(self.count) for batch in batches)))
        finally:
            torch.set_num_threads(before)
