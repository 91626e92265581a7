"""What can be wrong with what we wrote ourselves: models, calibrations, prepared cohorts."""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bad_folders import Change, prepare_patients
from bad_inputs import Case, Good, calibrate, evaluate, flip, segment_files

DEEP = b"[" * 100_000
HUGE = b'{"format": ' + b"9" * 5000 + b"}"
NOT_JSON = {
    "empty": b"", "zeros": bytes(100), "text": b"hello", "cut": b'{"format": 1, "set', "a list": b"[]", "null": b"null",
    "a number": b"1", "a word": b'"x"', "no entries": b"{}", "deep": DEEP, "a huge number": HUGE,
    "UTF-16": "{}".encode("utf-16"),
    "another format": b'{"format": 2}', "format alone": b'{"format": 1}', "binary": bytes(range(256)),
    "Latin-1": b'{"\xe9": 1}',
}  # fmt: skip


MANIFEST = json.dumps(
    {
        "format": 1,
        "preparation": {"modalities": ["flair"], "size": 16},
        "slices": 3,
        "tables_sha256": dict.fromkeys(("slices.csv", "scans.csv", "split.csv"), "0" * 64),
    }
)


def cases() -> Iterator[Case]:
    for some in (models(), calibrations(), cohorts()):
        yield from some


def models(kind: str = "model") -> Iterator[Case]:
    for at in (0, 1, 7, 8, 9, 500, 20_000, 200_000, 4_000_000, -1):
        yield _model(f"cut at {at}", kind, "weights.safetensors", lambda data, at=at: data[:at])
    for at in (0, 3, 7, 8, 50, 400, 2000, 200_000, 1_000_000, 4_000_000, -1):
        yield _model(f"flipped at {at}", kind, "weights.safetensors", lambda data, at=at: flip(data, at))
    for name, content in {
        "empty": b"", "zeros": bytes(5000), "0xff": b"\xff" * 5000, "pickled": pickle.dumps({"a": [1.0]}),
        "text": b"weights",
        "a zip": b"PK\x03\x04" + bytes(500), "of a header of 2**63": b"\xff" * 7 + b"\x7f" + bytes(99),
        "a header alone": b"\2" + bytes(7) + b"{}",
        "of another's": _tensors({}), "of no words": _tensors({"anofpdm": "", "sha256": ""}),
        "of a list": _tensors({"anofpdm": "[]", "sha256": ""}),
        "of deep words": _tensors({"anofpdm": "[" * 100_000, "sha256": ""}),
        "of format 2": _tensors({"anofpdm": '{"format": 2}', "sha256": ""}),
        "of format 1": _tensors({"anofpdm": '{"format": 1}', "sha256": ""}), "of null": _tensors({"anofpdm": "null",
        "sha256": ""}),
    }.items():  # fmt: skip
        yield _model(f"weights {name}", kind, "weights.safetensors", lambda _data, content=content: content)
    yield _model("with one byte more", kind, "weights.safetensors", lambda data: data + b"\0")
    for name, said in _signed():
        yield Case(f"segment model signed, {name}", kind, _signed_model(said), names="model7")
    for name, content in {"empty": b"", "wrong": b"{]", "another's": b'{"sha256": "0"}'}.items():
        yield _model(
            f"config {name}", "unusual and right", "config.json", lambda _data, content=content: content, right=True
        )


def _model(name: str, kind: str, file: str, change: Callable[[bytes], bytes], *, right: bool = False) -> Case:
    def make(folder: Path, good: Good) -> list[str]:
        shutil.copytree(good.model, folder / "model7")
        path = folder / "model7" / file
        path.write_bytes(change(path.read_bytes()))
        return segment_files(folder, good, str(good.root / "scan/p_flair.nii.gz"), model="model7")

    return Case(f"segment model {name}", kind, make, right, file)


def _tensors(said: dict[str, str]) -> bytes:
    header = json.dumps({"__metadata__": said, "w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def small_model() -> bytes:
    """A model of few weights that is whole, to be bent by a fuzzer."""
    import torch
    from safetensors.torch import save

    from anofpdm.network.checkpoint import _digest

    tensors = {"w": torch.zeros(4), "v": torch.ones(2, 2)}
    network = {"in_channels": 1, "channels": 4, "multipliers": [1], "blocks": 1, "attention": [], "heads": 1}
    said = json.dumps({"format": 1, "task": "guided", "modalities": ["t1"], "size": 16, "network": network})
    return save(tensors, {"anofpdm": said, "sha256": _digest(tensors, said)})


def _signed() -> Iterator[tuple[str, dict[str, Any]]]:
    """Whole by their hash, and wrong all the same: of another version, or of a careless hand."""
    for name in ("task", "modalities", "size", "network"):
        yield f"no {name}", {name: None}
        yield f"{name} a word", {name: "x"}
        yield f"{name} a number", {name: -3}
    for name, value in (("channels", 10**9), ("channels", 3), ("channels", "x"), ("channels", 32.5), ("multipliers",
    []),
                        ("multipliers", [0]), ("multipliers", "ab"), ("heads", 0), ("heads", 7), ("blocks", -1),
                        ("blocks", 10**9),
                        ("in_channels", 0), ("in_channels", 5), ("n_labels", 0), ("n_labels", 10**12), ("dropout", 7),
                        ("other", 1)):  # fmt: skip
        yield f"network {name} {value}", {"network": {name: value}}
    yield "three modalities", {"modalities": ["flair", "t1", "t2"]}
    yield "modalities of numbers", {"modalities": [1, 2, 3, 4]}
    yield "a modality twice", {"modalities": ["flair", "flair", "t1", "t2"]}
    yield "size 0", {"size": 0}
    yield "size 60", {"size": 60}
    yield "size 10**6", {"size": 10**6}


def _signed_model(changes: dict[str, Any]) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        from anofpdm.network import checkpoint

        weights, said, _ = checkpoint.load_model(good.model)
        for name, value in changes.items():
            said[name] = {**said[name], **value} if isinstance(value, dict) else value
        shutil.copytree(good.model, folder / "model7")
        digest = checkpoint.save_model(folder / "model7", weights, {k: v for k, v in said.items() if v is not None})
        calibration = json.loads((folder / "model7/calibration.json").read_text())
        (folder / "model7/calibration.json").write_text(json.dumps({**calibration, "checkpoint_sha256": digest}))
        return segment_files(folder, good, str(good.root / "scan/p_flair.nii.gz"), model="model7")

    return make


def calibrations(kind: str = "calibration") -> Iterator[Case]:
    for name, content in NOT_JSON.items():
        yield _model(f"calibration {name}", kind, "calibration.json", lambda _data, content=content: content)
    for at in np.linspace(0.01, 0.99, 8):
        yield _model(
            f"calibration cut at {at:.0%}", kind, "calibration.json", lambda data, at=at: data[: int(at * len(data))]
        )
    for where, values in {
        "format": (0, 2, "1", None), "strength": ("x", None, float("nan"), float("inf"), -1, [1], True),
        "cut": ("x", None, float("nan"), {}), "divergence_max": ("x", 0, -1, float("nan")), "detector": ("x", None, 1),
        "settings.levels": ([], ["a"], [0.5, 3], [-1, 5], [0, 1000], [5, 3], [[0]], 7, None, [0, 10**400]),
        "settings.channels": ([], [9], [-1], ["x"], [0, 0], None, [0.5]), "settings.encoding": ("x", 1),
        "settings.signal": ("x",),
        "settings.clamp": ("x", 7), "settings.other": (1,), "fitted": ([], [{}], None, "x", [1]), "foreground": ([1],
        ["a", "b"], None, [float("nan"), 1]),
        "fitted.0.curve.centre": ([], [1.0], "x", [["a"]], [float("nan"), 1]), "fitted.0.curve.scale": ([0, 0], [1.0]),
        "fitted.0.curve.weights": ([1.0], [[1, 2], [3, 4]]), "fitted.0.curve.offset": ("x", None, float("inf")),
        "fitted.0.healthy_threshold": ("x", None, float("nan"), -1), "fitted.0.context_mm": ("x", None, -1),
        "seed": ("x", -1, 1.5, 10**400, None),
        "modalities": (None, ["t1"], "flair"), "checkpoint_sha256": (None, "0" * 64, 7), "cosine_accuracy": (None, [],
        {"accuracy": "x"}),
        "candidates": (None, [1], [{}]), "other": (1,),
    }.items():  # fmt: skip
        for value in values:
            yield _model(f"calibration {where} {value!s:.12}", kind, "calibration.json", _set(where, value))


def _set(where: str, value: Any) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        said = json.loads(data)
        *path, last = (int(part) if part.isdigit() else part for part in where.split("."))
        place = said
        for part in path:
            place = place[part]
        place[last] = value
        return json.dumps(said).encode()

    return change


# ---- cohorts ---------------------------------------------------------------------------------------------------------


def cohorts(kind: str = "cohort") -> Iterator[Case]:
    for name, content in NOT_JSON.items():
        yield _cohort(f"manifest {name}", kind, "manifest.json", lambda _data, content=content: content)
    for where, value in (("tables_sha256", None), ("tables_sha256", []), ("tables_sha256", {}), ("slices", "x"),
    ("slices", 3),
                         ("preparation", None), ("preparation", {}), ("preparation.modalities", "flair"),
                         ("preparation.modalities", [1]),
                         ("preparation.modalities", ["flair"]), ("preparation.size", 63), ("format", "1")):  # fmt: skip
        yield _cohort(f"manifest {where} {value!s:.10}", kind, "manifest.json", _set(where, value))
    for table in ("slices.csv", "scans.csv", "split.csv"):
        yield _cohort(f"{table} gone", kind, table, None)
        yield _cohort(f"{table} changed", kind, table, lambda data: data.replace(b"q1", b"q2"))
        yield _cohort(f"{table} empty", kind, table, lambda _data: b"")
        yield Case(f"calibrate cohort {table} a pipe", kind, _cohort_with(table, os.mkfifo), names=table)
        yield Case(f"calibrate cohort {table} a folder", kind, _cohort_with(table, Path.mkdir), names=table)
    for command in ("calibrate", "evaluate"):
        for name, change in _arrays():
            if (command, name) == ("calibrate", "flipped at -1"):
                continue  # of a scan that calibration does not look at
            yield _cohort(f"slices {name}", kind, "slices.npy", change, command=command)
        for place, put in (("a pipe", os.mkfifo), ("a folder", Path.mkdir)):
            yield Case(
                f"{command} cohort slices {place}", kind, _cohort_with("slices.npy", put, command), names="cohort7"
            )
    for name, change in _arrays():
        if name in ("flipped at 5000", "flipped at -1"):
            continue  # masks have no hash: they are there to be compared with, and may be deleted
        yield _cohort(f"masks {name}", kind, "truth/masks.npy", change, command="evaluate")
    for name, content in {"empty": b"", "a list": b"[1]\n[2]\n", "text": b"x\ny\n", "null": b"null\nnull\n",
    "deep": DEEP + b"\n" + DEEP + b"\n",
                          "of numbers": b'{"a": 1}\n{"scan": 1}\n'}.items():  # fmt: skip
        yield Case(f"prepare journal {name}", kind, _journal(content), name == "empty", "journal", like="patients")


def _arrays() -> Iterator[tuple[str, Callable[[bytes], bytes] | None]]:
    yield "gone", None
    for at in (0, 5, 9, 50, 128, 5000, -1):
        yield f"cut at {at}", lambda data, at=at: data[:at]
    for at in (0, 6, 8, 9, 12, 20, 40, 60, 75, 5000, -1):
        yield f"flipped at {at}", lambda data, at=at: flip(data, at)
    yield "longer", lambda data: data + bytes(64)
    yield "pickled", lambda _data: _npy(np.array([{}], dtype=object), allow_pickle=True)
    yield "of another shape", lambda _data: _npy(np.zeros((12, 5), np.float16))
    yield "of another type", lambda data: data.replace(b"<f2", b"<i2").replace(b"|u1", b"|i1")
    yield "of a shape that lies", lambda data: data.replace(b"(12, ", b"(-2, ")
    yield "of a huge shape", lambda data: data.replace(b"'shape': (", b"'shape': (9999999999, ")[:-11]
    yield "a zip", lambda _data: b"PK\x03\x04" + bytes(500)
    yield "text", lambda _data: b"0.5 0.5\n"


def _npy(array: np.ndarray, **how: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **how)
    return stream.getvalue()


def _cohort(
    name: str, kind: str, file: str, change: Callable[[bytes], bytes] | None, command: str = "calibrate"
) -> Case:
    def put(path: Path) -> None:
        if change is not None:
            path.write_bytes(change(path.with_suffix(".kept").read_bytes()))

    return Case(f"{command} cohort {name}", kind, _cohort_with(file, put, command), names="cohort7")


def _cohort_with(file: str, put: Change, command: str = "calibrate") -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        shutil.copytree(good.cohort, folder / "cohort7")
        path = folder / "cohort7" / file
        path.rename(path.with_suffix(".kept"))
        put(path)
        if command == "evaluate":
            return evaluate(good, "cohort7")
        shutil.copytree(good.model, folder / "model7")
        return calibrate("model7", "cohort7")

    return make


def _journal(content: bytes) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        (folder / "out").mkdir()
        (folder / "out" / "journal.jsonl").write_bytes(content)
        return prepare_patients(good)

    return make
