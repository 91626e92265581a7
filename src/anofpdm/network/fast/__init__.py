"""CUDA graphs and Triton kernels. Modules with kernels need Triton and are imported only where it is available."""

import functools
import importlib.util


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
