"""Memory that runs out, and how the process treats memory that it has freed."""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from anofpdm.errors import NotEnoughMemoryError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_KEPT = 32 << 20  # bytes of one block; the C library allows no more
KEPT = 512 << 20  # bytes in all
LEAST_ADDRESS_SPACE = 1 << 30  # bytes; with less, the libraries under torch abort, or wait for ever
REMEDY = "end other programs, or use a machine with more"
MESSAGES = (  # of torch, C++, numpy, safetensors, Python's threads, the loader and oneDNN
    "out of memory",
    "bad_alloc",
    "allocate memory",
    "defaultcpuallocator",
    "unable to allocate",
    "can't start new thread",
    "failed to map segment",
    "could not create a primitive",
)


def is_out_of_memory(problem: BaseException) -> bool:
    """Python raises a MemoryError, torch a RuntimeError, for a GPU one of its own class."""
    if isinstance(problem, MemoryError) or (isinstance(problem, OSError) and problem.errno == errno.ENOMEM):
        return True
    text = str(problem).lower()
    return type(problem).__name__ == "OutOfMemoryError" or any(message in text for message in MESSAGES)


def check_address_space() -> None:
    """Raises NotEnoughMemoryError where a limit (`ulimit -v`) leaves too little even to import torch."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESS_SPACE:
        raise NotEnoughMemoryError(
            f"not enough memory: this process is limited to {limit >> 20} MiB (ulimit -v), and needs at least "
            f"{LEAST_ADDRESS_SPACE >> 20} MiB; raise the limit"
        )


def unless_out_of_memory(compute: Callable[[], T]) -> T | None:
    """None if memory ran out; what the attempt held is free then."""
    try:
        return compute()
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem):
            raise
    release_cached_memory()  # outside of the handler, which holds the memory of the attempt
    return None


def in_batches_that_fit(
    compute: Callable[["np.ndarray"], T], rows: "np.ndarray", batch: int
) -> Iterator[tuple[int, T]]:
    """How many rows are done, and the result of the last of them; batches are halved where memory runs out."""
    start = 0
    while start < len(rows):
        some = rows[start : start + batch]
        result = unless_out_of_memory(partial(compute, some))
        if result is None:
            batch = half_of(len(some))
        else:
            start += len(some)
            yield start, result


def release_cached_memory() -> None:
    """What torch keeps of a GPU's memory for later."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch is not None and torch.backends.mps.is_available():
        torch.mps.empty_cache()


def half_of(batch: int) -> int:
    """The batch to try next."""
    if batch == 1:
        raise NotEnoughMemoryError(f"not enough memory for a single slice; {REMEDY}")
    return (batch + 1) // 2


def keep_freed_memory() -> None:
    """For the whole process, before torch is imported. Otherwise freed memory goes back to the system and is faulted in
    again for every layer of a network, which takes a tenth of the time on a CPU."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "100")  # ms; torch's own allocator, on ARM
    if sys.platform != "linux":
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)
