"""Damaged and inconsistent models: weights and calibration of the diffusion model, and its student."""

import json
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from faults.bad_files.base import (
    Case,
    Edit,
    changes,
    contents,
    damages,
    rows,
    segment_flair,
    write,
)

NAN, INF = float("nan"), float("inf")
DEEP = b"[" * 100_000
NOT_JSON = {
    "empty": b"", "zeros": bytes(100), "text": b"hello", "truncated": b'{"format": 1, "set', "a list": b"[]",
    "null": b"null", "no entries": b"{}", "nested": DEEP, "a huge number": b'{"format": ' + b"9" * 5000 + b"}",
    "UTF-16": "{}".encode("utf-16"), "another format": b'{"format": 2}', "Latin-1": b'{"\xe9": 1}',
}  # fmt: skip
WEIGHTS, STUDENT = "model7/weights.safetensors", "model7/student/weights.safetensors"


def safetensors(metadata: Mapping[str, str]) -> bytes:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": metadata, "w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


BAD_WEIGHTS = {
    "empty": b"", "zeros": bytes(5000), "pickled": pickle.dumps({"a": [1.0]}), "a zip": b"PK\x03\x04" + bytes(500),
    "with a header of 2**63 bytes": b"\xff" * 7 + b"\x7f" + bytes(99), "only a header": b"\2" + bytes(7) + b"{}",
    "without our metadata": safetensors({}), "with a list": safetensors({"anofpdm": "[]", "sha256": ""}),
    "with nested metadata": safetensors({"anofpdm": "[" * 100_000, "sha256": ""}),
    "of format 2": safetensors({"anofpdm": '{"format": 2}', "sha256": ""}),
}  # fmt: skip
# The hash is correct, the metadata is not: another version, or edited by hand. None: the entry is missing.
BAD_METADATA: dict[str, tuple[Any, ...]] = {
    "task": (None, "x"), "size": (-3, 60, 10**6), "modalities": (["flair", "t1", "t2"], [1, 2, 3, 4], ["flair"] * 4),
    "network.channels": (10**9, "x", 32.5), "network.multipliers": ([], [0]), "network.heads": (0, 7),
    "network.blocks": (-1, 10**9), "network.in_channels": (5,), "network.n_labels": (10**12,), "network.other": (1,),
}  # fmt: skip
BAD_STUDENT: dict[str, tuple[Any, ...]] = {
    "task": (None, "guided"), "teacher_sha256": (None, "0" * 64), "calibration": (None, "x"),
    "network.modalities": (["flair", "t2", "t1"], [1, 2]), "network.size": (-64, 60, 10**6),
    "network.neighbours_mm": ([2.5],), "network.width": (10**9,), "network.multipliers": ([], [10**9]),
    "calibration.detector": (None, "x"), "calibration.detection_mm": ([5], [NAN, 5]), "calibration.smallest": (1.5,),
}  # fmt: skip
BAD_CALIBRATION: dict[str, tuple[Any, ...]] = {
    "format": (None,), "strength": ("x", INF), "cut": (NAN,), "divergence_max": (NAN,), "modalities": (["t1"],),
    "settings.levels": ([], [-1, 5], [5, 3], [0, 10**400]), "settings.channels": ([], [-1], [0, 0]),
    "settings.signal": ("x",), "settings.clamp": (7,), "fitted": ([], [{}], None), "foreground": ([1], [NAN, 1]),
    "fitted.0.curve.centre": ([], [["a"]], [NAN, 1]), "fitted.0.curve.weights": ([[1, 2], [3, 4]],),
    "fitted.0.healthy_threshold": (NAN,), "fitted.0.context_mm": (-1,), "checkpoint_sha256": ("0" * 64,),
}  # fmt: skip


def cases() -> Iterator[Case]:
    command, student = segment_flair(), segment_flair(engine="student")
    files = contents(BAD_WEIGHTS) | changes(damages((0, 7, 8, 500, 20_000, -1), (0, 7, 8, 400, 200_000, -1)))
    yield from rows("model weights", command, WEIGHTS, files)
    yield from rows("student weights", student, STUDENT, files)
    metadata = _settings(BAD_METADATA, _with_metadata)
    yield from rows("model with a valid hash,", command, WEIGHTS, metadata, mentions="model7")
    metadata = _settings(BAD_STUDENT, _with_metadata)
    yield from rows("student with a valid hash,", student, STUDENT, metadata, mentions="student")
    unknown = {"modality": _with_metadata("network.modalities", ["flair", "t9"])}
    yield from rows("student with an unknown", student, STUDENT, unknown, mentions="t9")
    texts = {"config empty": write(b""), "config invalid": write(b"{]"), "config of others": write(b'{"sha256": "0"}')}
    yield from rows("model", command, "model7/config.json", texts)
    yield from rows("student", student, "model7/student/config.json", texts)
    yield Case("segment without a student", student, "model7/student", shutil.rmtree, mentions="no student")
    automatic = tuple("auto" if word == "diffusion" else word for word in command)
    yield Case("segment automatically", automatic, "model7/student", shutil.rmtree, True, reference=command)
    yield Case("student damaged, not used", command, STUDENT, write(b"x"), True)
    calibrations = contents(NOT_JSON) | _settings(BAD_CALIBRATION, set_entry)
    yield from rows("calibration", command, "model7/calibration.json", calibrations)


def _settings(table: Mapping[str, tuple[Any, ...]], edit: Any) -> dict[str, Edit]:
    return {f"{where} {value!s:.24}": edit(where, value) for where, values in table.items() for value in values}


def set_entry(where: str, value: Any) -> Edit:
    """Set an entry of a JSON file, by its dotted path."""

    def edit(path: Path) -> None:
        payload = json.loads(path.read_text())
        _set(payload, where, value)
        path.write_text(json.dumps(payload))

    return edit


def _set(payload: Any, where: str, value: Any) -> None:
    *path, last = (int(part) if part.isdigit() else part for part in where.split("."))
    for part in path:
        payload = payload[part]
    payload[last] = value


def _with_metadata(where: str, value: Any) -> Edit:
    """Other metadata in the weights, with a hash that matches, also in the calibration; None removes an entry."""
    from anofpdm.network import checkpoint

    def edit(path: Path) -> None:
        weights, metadata, _ = checkpoint.load_model(path.parent)
        _set(metadata, where, value)
        kept = {name: entry for name, entry in metadata.items() if entry is not None}
        digest = checkpoint.save_model(path.parent, weights, kept)
        if (path.parent / "calibration.json").is_file():
            set_entry("checkpoint_sha256", digest)(path.parent / "calibration.json")

    return edit


def small_model(folder: Path) -> bytes:
    """A complete model with few weights, as a seed for the fuzzer."""
    import torch

    from anofpdm.network.checkpoint import WEIGHTS, save_model

    folder.mkdir()
    network = {"in_channels": 1, "channels": 4, "multipliers": [1], "blocks": 1, "attention": [], "heads": 1}
    header = {"format": 1, "task": "guided", "modalities": ["t1"], "size": 16, "network": network}
    save_model(folder, {"w": torch.zeros(4), "v": torch.ones(2, 2)}, header)
    return (folder / WEIGHTS).read_bytes()
