"""Damaged and inconsistent prepared cohorts, and the tables that users write."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from faults.bad_files.base import (
    CALIBRATE,
    EVALUATE,
    LABELS,
    SPLIT,
    WITH_LABELS,
    WITH_SPLIT,
    Case,
    Change,
    Edit,
    changes,
    contents,
    damages,
    prepare,
    replace,
    rows,
    write,
)
from faults.bad_files.models import DEEP, NOT_JSON, set_entry
from faults.bad_files.paths import IRREGULAR

TABLES = ("slices.csv", "scans.csv", "split.csv")
MANIFEST = json.dumps(
    {
        "format": 1,
        "preparation": {"modalities": ["flair"], "size": 16},
        "slices": 3,
        "tables_sha256": dict.fromkeys(TABLES, "0" * 64),
    }
)  # a seed for the fuzzer
BAD_MANIFEST: dict[str, Edit] = {
    "of three slices": set_entry("slices", 3), "without its preparation": set_entry("preparation", {}),
    "of one modality": set_entry("preparation.modalities", ["flair"]), "of size 63": set_entry("preparation.size", 63),
}  # fmt: skip
NO_FILE = {name: replace(IRREGULAR[name]) for name in ("missing", "a pipe", "a folder")}
JOURNALS = {"a list": b"[1]\n[2]\n", "text": b"x\ny\n", "nested": DEEP + b"\n", "of numbers": b'{"a": 1}\n'}


def npy(array: np.ndarray, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


BAD_ARRAYS: dict[str, Change] = {
    **damages((0, 9, 50, -1), (0, 6, 8, 20, 60)),
    "longer": lambda data: data + bytes(64),
    "pickled": lambda _data: npy(np.array([{}], dtype=object), allow_pickle=True),
    "of another shape": lambda _data: npy(np.zeros((12, 5), np.float16)),
    "of another type": lambda data: data.replace(b"<f2", b"<i2").replace(b"|u1", b"|i1"),
    "of a negative shape": lambda data: data.replace(b"(12, ", b"(-2, "),
    "of a huge shape": lambda data: data.replace(b"'shape': (", b"'shape': (9999999999, ")[:-11],
}
# Only faults of the file, and a few of its rows: tests/cohorts has the others.
NO_TABLES = {
    "of zeros": bytes(100), "of binary": bytes(range(256)), "in UTF-16": LABELS.encode("utf-16"), "of HTML": b"<html>",
    "of blanks": b" \n \n", "nested": b"{" * 9999, "of one long line": b"subject,label\n" + b"x" * 200_000 + b",1\n",
    "of one long quote": b'subject,slice,label\n"' + b"q0,,1\n" * 40_000, "without rows": b"subject,label,split\n",
}  # fmt: skip
BAD_LABELS = {
    "with a column twice": "subject,slice,label,label\nq0,1,1,0\n", "without columns": "q0,,1\n",
    "with an unknown patient": LABELS + "q9,,1\n", "with NUL": LABELS + "q0\0,,1\n",
}  # fmt: skip
BAD_SPLITS = {"that contradicts itself": SPLIT + "q0,test\n", "without one patient": SPLIT[:-8]}
VALID_LABELS = {
    "as spreadsheets save them": "\ufeff" + LABELS.replace("\n", "\r\n").replace(",", ";"),
    "with blanks, capitals and an empty line": LABELS.replace(",", " , ").replace("label\n", "Label\n") + "\n\n,,\n",
}


def cases() -> Iterator[Case]:
    manifests = contents(NOT_JSON) | BAD_MANIFEST
    yield from rows("cohort manifest", CALIBRATE, "cohort7/manifest.json", manifests, mentions="cohort7")
    edits = changes({"changed": lambda data: data.replace(b"q1", b"q2")}) | {"empty": write(b"")} | NO_FILE
    for table in TABLES:
        yield from rows(f"cohort {table}", CALIBRATE, f"cohort7/{table}", edits, mentions="cohort7")
    arrays = changes(BAD_ARRAYS)
    slices = arrays | NO_FILE | changes(damages((), (5000,)))  # masks have no hash: they are used for evaluation only
    yield from rows("calibrate slices", CALIBRATE, "cohort7/slices.npy", slices, mentions="cohort7")
    yield from rows("evaluate slices", EVALUATE, "cohort7/slices.npy", arrays, mentions="cohort7")
    yield from rows("evaluate masks", EVALUATE, "cohort7/truth/masks.npy", arrays, mentions="cohort7")
    for name, content in {**JOURNALS, "empty": b""}.items():
        edit = _in_new_folder(content)
        command = prepare("patients7")
        yield Case(f"journal {name}", command, "out/journal.jsonl", edit, name == "empty", "journal")
    yield from rows("labels", WITH_LABELS, "labels.csv", contents(NO_TABLES | BAD_LABELS))
    yield from rows("split", WITH_SPLIT, "split.csv", contents(NO_TABLES | BAD_SPLITS))
    yield from rows("labels", WITH_LABELS, "labels.csv", contents(VALID_LABELS), valid=True)


def _in_new_folder(content: bytes) -> Edit:
    def edit(path: Path) -> None:
        path.parent.mkdir()
        path.write_bytes(content)

    return edit
