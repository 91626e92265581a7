"""Damaged and inconsistent prepared cohorts."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from faults.bad_files.base import Case, Change, Make, ValidFiles, calibrate, evaluate, flip_byte, prepare_patients
from faults.bad_files.calibrations import set_entry
from faults.bad_files.models import DEEP, NOT_JSON
from faults.bad_files.paths import Put

KIND = "cohort"
TABLES = ("slices.csv", "scans.csv", "split.csv")
MANIFEST = json.dumps(
    {
        "format": 1,
        "preparation": {"modalities": ["flair"], "size": 16},
        "slices": 3,
        "tables_sha256": dict.fromkeys(TABLES, "0" * 64),
    }
)  # a seed for the fuzzer
BAD_MANIFEST: tuple[tuple[str, Any], ...] = (
    ("tables_sha256", None), ("tables_sha256", {}), ("slices", "x"), ("slices", 3), ("preparation", {}),
    ("preparation.modalities", [1]), ("preparation.modalities", ["flair"]), ("preparation.size", 63),
)  # fmt: skip
JOURNALS = {
    "empty": b"", "a list": b"[1]\n[2]\n", "text": b"x\ny\n", "null": b"null\nnull\n",
    "nested": DEEP + b"\n" + DEEP + b"\n", "of numbers": b'{"a": 1}\n{"scan": 1}\n',
}  # fmt: skip


def cases() -> Iterator[Case]:
    for name, content in NOT_JSON.items():
        yield _change(f"manifest {name}", "manifest.json", lambda _data, content=content: content)
    for where, value in BAD_MANIFEST:
        yield _change(f"manifest {where} {value!s:.10}", "manifest.json", set_entry(where, value))
    for table in TABLES:
        yield _change(f"{table} changed", table, lambda data: data.replace(b"q1", b"q2"))
        yield _change(f"{table} empty", table, lambda _data: b"")
        for what, put in (("missing", lambda _path: None), ("a pipe", os.mkfifo), ("a folder", Path.mkdir)):
            yield Case(f"calibrate cohort {table} {what}", KIND, _replace(table, put), mentions=table)
    for number, (name, change) in enumerate(_bad_arrays()):
        command = "calibrate" if number % 2 else "evaluate"
        yield _change(f"slices {name}", "slices.npy", change, command=command)
        if "flipped at 5000" not in name:  # masks have no hash: they are used for evaluation only, and may be deleted
            yield _change(f"masks {name}", "truth/masks.npy", change, command="evaluate")
    for what, put in (("missing", lambda _path: None), ("a pipe", os.mkfifo), ("a folder", Path.mkdir)):
        yield Case(f"calibrate cohort slices {what}", KIND, _replace("slices.npy", put), mentions="cohort7")
    for name, content in JOURNALS.items():
        make = _with_journal(content)
        yield Case(f"prepare journal {name}", KIND, make, name == "empty", "journal", "patients")


def _bad_arrays() -> Iterator[tuple[str, Change]]:
    for at in (0, 9, 50, -1):
        yield f"truncated at {at}", lambda data, at=at: data[:at]
    for at in (0, 6, 8, 20, 60, 5000):
        yield f"flipped at {at}", lambda data, at=at: flip_byte(data, at)
    yield "longer", lambda data: data + bytes(64)
    yield "pickled", lambda _data: _to_npy(np.array([{}], dtype=object), allow_pickle=True)
    yield "of another shape", lambda _data: _to_npy(np.zeros((12, 5), np.float16))
    yield "of another type", lambda data: data.replace(b"<f2", b"<i2").replace(b"|u1", b"|i1")
    yield "of a negative shape", lambda data: data.replace(b"(12, ", b"(-2, ")
    yield "of a huge shape", lambda data: data.replace(b"'shape': (", b"'shape': (9999999999, ")[:-11]
    yield "a zip", lambda _data: b"PK\x03\x04" + bytes(500)


def _to_npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def _change(name: str, file: str, change: Change, command: str = "calibrate") -> Case:
    def put(path: Path) -> None:
        path.write_bytes(change(path.with_suffix(".kept").read_bytes()))

    return Case(f"{command} cohort {name}", KIND, _replace(file, put, command), mentions="cohort7")


def _replace(file: str, put: Put, command: str = "calibrate") -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copytree(files.cohort, folder / "cohort7")
        path = folder / "cohort7" / file
        path.rename(path.with_suffix(".kept"))
        put(path)
        if command == "evaluate":
            return evaluate(files, "cohort7")
        shutil.copytree(files.model, folder / "model7")
        return calibrate("model7", "cohort7")

    return make


def _with_journal(content: bytes) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "out").mkdir()
        (folder / "out" / "journal.jsonl").write_bytes(content)
        return prepare_patients(files)

    return make
