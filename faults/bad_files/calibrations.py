"""Damaged and inconsistent calibrations."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from faults.bad_files.base import Case, Change
from faults.bad_files.models import NOT_JSON, change_model

FILE = "calibration.json"
NAN, INF = float("nan"), float("inf")
BAD_ENTRIES: dict[str, tuple[Any, ...]] = {
    "format": (0, 2, "1", None), "strength": ("x", None, NAN, INF, -1, [1], True), "cut": ("x", None, NAN, {}),
    "divergence_max": ("x", 0, -1, NAN), "detector": ("x", None, 1),
    "settings.levels": ([], ["a"], [0.5, 3], [-1, 5], [0, 1000], [5, 3], [[0]], 7, None, [0, 10**400]),
    "settings.channels": ([], [9], [-1], ["x"], [0, 0], None, [0.5]), "settings.encoding": ("x", 1),
    "settings.signal": ("x",), "settings.clamp": ("x", 7), "settings.other": (1,),
    "fitted": ([], [{}], None, "x", [1]), "foreground": ([1], ["a", "b"], [NAN, 1]),
    "fitted.0.curve.centre": ([], [1.0], "x", [["a"]], [NAN, 1]), "fitted.0.curve.scale": ([0, 0], [1.0]),
    "fitted.0.curve.weights": ([1.0], [[1, 2], [3, 4]]), "fitted.0.curve.offset": ("x", None, INF),
    "fitted.0.healthy_threshold": ("x", NAN, -1), "fitted.0.context_mm": ("x", None, -1),
    "seed": ("x", -1, 1.5, 10**400), "modalities": (None, ["t1"], "flair"),
    "checkpoint_sha256": (None, "0" * 64, 7), "cosine_accuracy": (None, [], {"accuracy": "x"}),
    "candidates": (None, [1], [{}]), "other": (1,),
}  # fmt: skip


def cases(kind: str = "calibration") -> Iterator[Case]:
    for name, content in NOT_JSON.items():
        yield change_model(f"calibration {name}", kind, FILE, lambda _data, content=content: content)
    for share in np.linspace(0.01, 0.99, 8):
        change = lambda data, share=share: data[: int(share * len(data))]  # noqa: E731
        yield change_model(f"calibration truncated at {share:.0%}", kind, FILE, change)
    for where, values in BAD_ENTRIES.items():
        for value in values:
            yield change_model(f"calibration {where} {value!s:.12}", kind, FILE, set_entry(where, value))


def set_entry(where: str, value: Any) -> Change:
    """Set an entry of a JSON file, by its dotted path."""

    def change(data: bytes) -> bytes:
        payload = json.loads(data)
        *path, last = (int(part) if part.isdigit() else part for part in where.split("."))
        place = payload
        for part in path:
            place = place[part]
        place[last] = value
        return json.dumps(payload).encode()

    return change
