"""Checks of numbers that may come from a file."""

import math

from anofpdm.errors import MethodError


def check_finite(**numbers: object) -> None:
    for name, value in numbers.items():
        if not _is_number(value) or not math.isfinite(value):  # type: ignore[arg-type]
            raise MethodError(f"{name} must be a finite number, got {value!r}")


def check_not_negative(**numbers: object) -> None:
    check_finite(**numbers)
    for name, value in numbers.items():
        if value < 0:  # type: ignore[operator]
            raise MethodError(f"{name} must not be negative, got {value!r}")


def check_positive(**numbers: object) -> None:
    check_finite(**numbers)
    for name, value in numbers.items():
        if value <= 0:  # type: ignore[operator]
            raise MethodError(f"{name} must be positive, got {value!r}")


def check_number_or_nan(**numbers: object) -> None:
    check_finite(**{name: value for name, value in numbers.items() if value == value})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
