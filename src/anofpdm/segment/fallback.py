"""Where the memory of a GPU does not suffice, the CPU takes a scan."""

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from anofpdm.errors import NotEnoughMemoryError, ScanWarning
from anofpdm.segment.engines import DiffusionEngine, StudentEngine

T = TypeVar("T")


def use_engine(engine: DiffusionEngine | StudentEngine, work: Callable[[Any], T]) -> T:
    """`work` with the engine; on the CPU, with a warning, if the memory of its device is too small for one slice."""
    try:
        return work(engine)
    except NotEnoughMemoryError:
        if engine.device.type == "cpu":
            raise
    message = f"not enough memory on {engine.device}; computed on the CPU instead, in fp32"
    warnings.warn(message, ScanWarning, stacklevel=2)
    return work(engine.on_cpu())
