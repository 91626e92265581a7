"""What differs between CPUs."""

import contextlib
import platform
import warnings
from collections.abc import Iterator

import torch

SLOW_GRADIENTS = ("aarch64", "arm64")


@contextlib.contextmanager
def fast_gradients(device: torch.device) -> Iterator[None]:
    """For the backward pass. On ARM, oneDNN's gradients of convolutions take 1.4 to 3.5 times as long as torch's own;
    its forward pass, with channels last, does not (benchmarks/gradients.py)."""
    if device.type != "cpu" or platform.machine() not in SLOW_GRADIENTS:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on flags that are not changed
        with torch.backends.mkldnn.flags(enabled=False):
            yield
