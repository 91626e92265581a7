"""JSON artifacts: dataclasses to JSON and back.

The fields of a dataclass are the schema of its file. A value of the wrong type, a missing field and an unknown one are
refused by name. A number or a value that is not known (NaN, None) is left out of the file, and is the field's default
when the file is read.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")


def encode(value: object) -> bytes:
    """Indented JSON, with a line break at its end."""
    return msgspec.json.format(msgspec.json.encode(to_plain(value)), indent=2) + b"\n"


def decode(kind: type[T], data: bytes | str) -> T:
    """ValueError names the field."""
    try:
        payload = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ValueError(f"not JSON: {problem}") from None
    return convert(kind, payload)


def convert(kind: type[T], payload: object) -> T:
    """The dataclass of values that were read from JSON; ValueError names the field."""
    payload = _without_unknown_values(payload)
    try:
        value = msgspec.convert(payload, kind, dec_hook=_decode_array)
    except (msgspec.ValidationError, RecursionError) as problem:
        raise ValueError(str(problem)) from None
    _refuse_unknown_and_infinite(payload, msgspec.to_builtins(value, enc_hook=_encode_array), "$")
    return value


def to_plain(value: object) -> Any:
    """Dictionaries, lists and numbers."""
    return _without_unknown_values(msgspec.to_builtins(value, enc_hook=_encode_array))


def _without_unknown_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_unknown_values(entry) for name, entry in value.items() if not _is_unknown(entry)}
    return [_without_unknown_values(entry) for entry in value] if isinstance(value, list | tuple) else value


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _refuse_unknown_and_infinite(payload: Any, known: Any, where: str) -> None:
    if isinstance(payload, Mapping) and isinstance(known, Mapping):
        for name, value in payload.items():
            if name not in known:
                raise ValueError(f"unknown field `{name}` - at `{where}`")
            _refuse_unknown_and_infinite(value, known[name], f"{where}.{name}")
    elif isinstance(payload, list) and isinstance(known, list):
        for number, (value, entry) in enumerate(zip(payload, known, strict=True)):
            _refuse_unknown_and_infinite(value, entry, f"{where}[{number}]")
    elif isinstance(payload, float) and math.isinf(payload):
        raise ValueError(f"not a finite number - at `{where}`")


def _encode_array(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")


def _decode_array(kind: type, value: object) -> object:
    if kind is not np.ndarray:
        raise NotImplementedError(f"{kind.__name__} has no form in JSON")
    array = np.asarray(value)
    if array.dtype.kind not in "if":
        raise ValueError("an array of numbers is expected")
    return array.astype(np.float64)
