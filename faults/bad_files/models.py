"""Damaged and inconsistent models."""

import json
import pickle
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from faults.bad_files.base import Case, Change, Make, ValidFiles, flip_byte, segment_valid

DEEP = b"[" * 100_000
NOT_JSON = {
    "empty": b"", "zeros": bytes(100), "text": b"hello", "truncated": b'{"format": 1, "set', "a list": b"[]",
    "null": b"null", "a number": b"1", "a word": b'"x"', "no entries": b"{}", "nested": DEEP,
    "a huge number": b'{"format": ' + b"9" * 5000 + b"}", "UTF-16": "{}".encode("utf-16"),
    "another format": b'{"format": 2}', "only a format": b'{"format": 1}', "binary": bytes(range(256)),
    "Latin-1": b'{"\xe9": 1}',
}  # fmt: skip
WEIGHTS = "weights.safetensors"


def safetensors(metadata: Mapping[str, str]) -> bytes:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": metadata, "w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


BAD_WEIGHTS = {
    "empty": b"", "zeros": bytes(5000), "0xff": b"\xff" * 5000, "pickled": pickle.dumps({"a": [1.0]}),
    "text": b"weights", "a zip": b"PK\x03\x04" + bytes(500),
    "with a header of 2**63 bytes": b"\xff" * 7 + b"\x7f" + bytes(99), "only a header": b"\2" + bytes(7) + b"{}",
    "without our metadata": safetensors({}), "with empty metadata": safetensors({"anofpdm": "", "sha256": ""}),
    "with a list": safetensors({"anofpdm": "[]", "sha256": ""}),
    "with nested metadata": safetensors({"anofpdm": "[" * 100_000, "sha256": ""}),
    "of format 2": safetensors({"anofpdm": '{"format": 2}', "sha256": ""}),
    "of format 1": safetensors({"anofpdm": '{"format": 1}', "sha256": ""}),
    "with null": safetensors({"anofpdm": "null", "sha256": ""}),
}  # fmt: skip
TRUNCATED_AT = (0, 1, 7, 8, 9, 500, 20_000, 200_000, 4_000_000, -1)
FLIPPED_AT = (0, 3, 7, 8, 50, 400, 2000, 200_000, 1_000_000, 4_000_000, -1)
BAD_NETWORK = (
    ("channels", 10**9), ("channels", 3), ("channels", "x"), ("channels", 32.5), ("multipliers", []),
    ("multipliers", [0]), ("multipliers", "ab"), ("heads", 0), ("heads", 7), ("blocks", -1), ("blocks", 10**9),
    ("in_channels", 0), ("in_channels", 5), ("n_labels", 0), ("n_labels", 10**12), ("dropout", 7), ("other", 1),
)  # fmt: skip


def cases(kind: str = "model") -> Iterator[Case]:
    for at in TRUNCATED_AT:
        yield change_model(f"truncated at {at}", kind, WEIGHTS, lambda data, at=at: data[:at])
    for at in FLIPPED_AT:
        yield change_model(f"flipped at {at}", kind, WEIGHTS, lambda data, at=at: flip_byte(data, at))
    for name, content in BAD_WEIGHTS.items():
        yield change_model(f"weights {name}", kind, WEIGHTS, lambda _data, content=content: content)
    yield change_model("with one byte more", kind, WEIGHTS, lambda data: data + b"\0")
    for name, changes in _bad_metadata():
        yield Case(f"segment model with a valid hash, {name}", kind, _with_metadata(changes), mentions="model7")
    for name, content in {"empty": b"", "invalid": b"{]", "of other weights": b'{"sha256": "0"}'}.items():
        change = lambda _data, content=content: content  # noqa: E731
        yield change_model(f"config {name}", kind, "config.json", change)


def change_model(
    name: str, kind: str, file: str, change: Change, *, valid: bool = False, engine: str = "diffusion"
) -> Case:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copytree(files.model, folder / "model7")
        path = folder / "model7" / file
        path.write_bytes(change(path.read_bytes()))
        return segment_valid(files, model="model7", engine=engine)

    return Case(f"segment model {name}", kind, make, valid, file, "student" if engine == "student" else "")


def _bad_metadata() -> Iterator[tuple[str, dict[str, Any]]]:
    """The hash is correct, the metadata is not: another version, or edited by hand."""
    for name in ("task", "modalities", "size", "network"):
        yield f"no {name}", {name: None}
        yield f"{name} a word", {name: "x"}
        yield f"{name} a number", {name: -3}
    for name, value in BAD_NETWORK:
        yield f"network {name} {value}", {"network": {name: value}}
    yield "three modalities", {"modalities": ["flair", "t1", "t2"]}
    yield "modalities of numbers", {"modalities": [1, 2, 3, 4]}
    yield "a modality twice", {"modalities": ["flair", "flair", "t1", "t2"]}
    yield "size 0", {"size": 0}
    yield "size 60", {"size": 60}
    yield "size 10**6", {"size": 10**6}


def rewrite_metadata(source: Path, target: Path, changes: Mapping[str, Any]) -> str:
    """Save a model of `source` in `target` with other metadata and a hash that matches; None removes an entry."""
    from anofpdm.network import checkpoint

    weights, metadata, _ = checkpoint.load_model(source)
    for name, value in changes.items():
        metadata[name] = {**metadata[name], **value} if isinstance(value, dict) else value
    return checkpoint.save_model(target, weights, {k: v for k, v in metadata.items() if v is not None})


def _with_metadata(changes: Mapping[str, Any]) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        model = folder / "model7"
        shutil.copytree(files.model, model)
        digest = rewrite_metadata(files.model, model, changes)
        calibration = json.loads((model / "calibration.json").read_text())
        (model / "calibration.json").write_text(json.dumps({**calibration, "checkpoint_sha256": digest}))
        return segment_valid(files, model="model7")

    return make


def small_model() -> bytes:
    """A complete model with few weights, as a seed for the fuzzer."""
    import torch
    from safetensors.torch import save

    from anofpdm.network.checkpoint import _digest

    tensors = {"w": torch.zeros(4), "v": torch.ones(2, 2)}
    network = {"in_channels": 1, "channels": 4, "multipliers": [1], "blocks": 1, "attention": [], "heads": 1}
    metadata = json.dumps({"format": 1, "task": "guided", "modalities": ["t1"], "size": 16, "network": network})
    return save(tensors, {"anofpdm": metadata, "sha256": _digest(tensors, metadata)})
