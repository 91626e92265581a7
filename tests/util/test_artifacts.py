"""JSON artifacts against the standard library's parser, and what is refused."""

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pytest

from anofpdm.util.artifacts import convert, decode, encode


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    weights: np.ndarray
    rating: float = math.nan


@dataclass(frozen=True)
class Outer:
    inner: Inner
    sizes: tuple[int, ...]
    colour: Colour = Colour.RED
    limit: float | None = None
    rest: dict[str, Any] = field(default_factory=dict)


def test_what_is_written_is_read_again():
    value = Outer(Inner(np.array([0.1, -2e300])), (3, 4), rest={"a": {"b": [1]}})
    data = encode(value)
    assert json.loads(data) == {
        "inner": {"weights": [0.1, -2e300]}, "sizes": [3, 4], "colour": "red", "rest": {"a": {"b": [1]}},
    }  # fmt: skip
    again = decode(Outer, data)
    np.testing.assert_array_equal(again.inner.weights, value.inner.weights)
    assert math.isnan(again.inner.rating)
    assert (again.sizes, again.colour, again.limit, again.rest) == (value.sizes, value.colour, None, value.rest)


GOOD = {"inner": {"weights": [1.0]}, "sizes": [1]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": [1.5]}, "int.*sizes"),
        ({"sizes": [True]}, "int.*sizes"),
        ({"inner": {}}, "weights"),
        ({"inner": {"weights": [1, "a"]}}, "weights"),
        ({"inner": {"weights": [1], "wieghts": 2}}, "wieghts.*inner"),
        ({"colour": "blue"}, "blue"),
        ({"limit": "1"}, "limit"),
        ({"limit": math.inf}, "finite.*limit"),
        ({"inner": {"weights": [1, -math.inf]}}, "finite.*weights"),
    ],
)
def test_a_wrong_field_is_named(changes, words):
    with pytest.raises(ValueError, match=words):
        convert(Outer, GOOD | changes)


@pytest.mark.parametrize("text", ["nope", "[" * 100_000, '{"inner": NaN}', b"\xff\xfe"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(ValueError, match="not JSON"):
        decode(Outer, text)
