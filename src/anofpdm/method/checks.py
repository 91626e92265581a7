"""Checks of numbers that may come from a file."""

import math

from anofpdm.errors import MethodError


def check_numbers(low: float = -math.inf, *, exclusive: bool = False, **numbers: float) -> None:
    """Each must be finite and at least `low`; above it where that is exclusive."""
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise MethodError(f"{name} must be a finite number, got {value!r}")
        if value < low or (exclusive and value == low):
            raise MethodError(f"{name} must be {'above' if exclusive else 'at least'} {low:g}, got {value!r}")
