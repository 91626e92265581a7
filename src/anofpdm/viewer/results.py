"""Results on disk, and which of their files may be handed out: those with a name that we give, and the scans they say
they were made from, while those are still the same. A client names a result by its key and a file by its role; both are
looked up here, and neither is ever part of a path."""

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anofpdm.segment.outputs import (
    ANOMALY_MAP,
    DICOM_CAPTURE,
    DICOM_SEG,
    FINDINGS,
    MASK,
    OVERVIEW,
    REPORT,
    SLICES,
    SUMMARY,
    bids_suffix,
)
from anofpdm.viewer.refusals import RefusalError, gone

FILES = {
    "mask": MASK,
    "map": ANOMALY_MAP,
    "findings": FINDINGS,
    "slices": SLICES,
    "summary": SUMMARY,
    "picture": OVERVIEW,
    "report": REPORT,
    "dicom-seg": DICOM_SEG,
    "dicom-picture": DICOM_CAPTURE,
}  # by role
KINDS = {
    ".nii.gz": "application/gzip", ".nii": "application/octet-stream", ".csv": "text/csv; charset=utf-8",
    ".json": "application/json", ".png": "image/png", ".html": "text/html; charset=utf-8", ".dcm": "application/dicom",
}  # fmt: skip
SCAN = "scan-"  # before a modality: the role of a scan
DEEPEST = 8  # folders below the one that is viewed
FOLDERS = re.compile(r"(?<![^\s('\"])/(?:[^\s/]+/)+")  # of a path, up to the file's name
LARGEST_TABLE = 4 << 20  # bytes of a summary or a table of findings


@dataclass(frozen=True)
class Result:
    key: str
    title: str
    files: dict[str, Path]  # by role
    summary: dict[str, Any]

    def file(self, role: str) -> Path:
        path = self.files.get(role) or self._scan(role)
        if path is None or not path.is_file():
            raise RefusalError(404, "This result has no such file.")
        return path

    def scans(self) -> dict[str, Path]:
        """By modality: those that lie beside the result, and those that are still what they were."""
        beside = {role.removeprefix(SCAN): path for role, path in self.files.items() if role.startswith(SCAN)}
        found = {name: self._scan(f"{SCAN}{name}") for name in self._inputs()}
        return {**beside, **{name: path for name, path in found.items() if path is not None}}

    def notes(self) -> list[str]:
        """Warnings, with names of files and not their folders."""
        notes = [str(note) for note in self.summary.get("warnings") or []]
        for said in self._inputs().values():
            file = str(said.get("file", "")) if isinstance(said, dict) else ""
            notes = [note.replace(file, Path(file).name) for note in notes] if file else notes
        return [FOLDERS.sub("", note) for note in notes]

    def _inputs(self) -> dict[str, Any]:
        said = self.summary.get("inputs")
        return said if isinstance(said, dict) else {}

    def _scan(self, role: str) -> Path | None:
        said = self._inputs().get(role.removeprefix(SCAN)) if role.startswith(SCAN) else None
        if not isinstance(said, dict):
            return None
        return _unchanged(Path(str(said.get("file"))), str(said.get("sha256")))


def kind_of(path: Path) -> str:
    return next((kind for ending, kind in KINDS.items() if path.name.endswith(ending)), "application/octet-stream")


def told(result: Result) -> dict[str, Any]:
    """What a list says of a result."""
    said = result.summary
    return {
        "key": result.key,
        "title": result.title,
        **{name: said.get(name) for name in ("volume_ml", "findings", "slices", "slices_detected", "seconds")},
        "warnings": len(said.get("warnings") or []),
    }


def findings(result: Result) -> list[dict[str, float]]:
    """Connected lesions, the largest first; a damaged table has none."""
    try:
        text = _small(result.file("findings")).decode()
        return [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(text.splitlines())]
    except (OSError, ValueError, TypeError, RefusalError):
        return []


# ---- a folder of results ---------------------------------------------------------------------------------------------


class ResultFolder:
    """Looked through again whenever the list is asked for: `segment` may still be at work in it."""

    def __init__(self, root: Path):
        self._root = root.resolve()
        self._results: dict[str, Result] = {}

    def look(self) -> list[Result]:
        self._results = {one.key: one for one in _found(self._root)}
        return list(self._results.values())

    def get(self, key: str) -> Result:
        result = self._results.get(key)
        if result is None:
            raise gone()
        return result


def _found(root: Path) -> Iterator[Result]:
    for place, folders, names in os.walk(root):
        here = Path(place)
        if len(here.relative_to(root).parts) >= DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            stem = _stem_of_summary(name)
            if stem is not None and (result := read_result(root, here, stem)) is not None:
                yield result


def _stem_of_summary(name: str) -> str | None:
    """What stands before it in BIDS names; nothing, where the folder is the scan's own."""
    if name == SUMMARY:
        return ""
    ending = bids_suffix(SUMMARY)
    return name.removesuffix(ending) if name.endswith(ending) else None


def read_result(root: Path, folder: Path, stem: str = "", key: str | None = None, title: str = "") -> Result | None:
    names = {role: stem + bids_suffix(file) if stem else file for role, file in FILES.items()}
    files = {role: folder / name for role, name in names.items() if _is_inside(folder / name, root)}
    try:
        summary = json.loads(_small(files["summary"]))
    except (OSError, ValueError, KeyError):
        return None
    if not isinstance(summary, dict) or "volume_ml" not in summary:  # another tool's
        return None
    called = stem or folder.relative_to(root).as_posix()
    name = title or (called if called != "." else root.name)
    key = key or hashlib.sha256(os.fsencode(files["summary"])).hexdigest()[:20]
    return Result(key, name, files, summary)


def _is_inside(path: Path, root: Path) -> bool:
    """A plain file below the root, also when links are followed."""
    return path.is_file() and path.resolve().is_relative_to(root)


def _small(path: Path) -> bytes:
    if path.stat().st_size > LARGEST_TABLE:
        raise ValueError(f"{path.name} is too large")
    return path.read_bytes()


def _unchanged(path: Path, sha256: str) -> Path | None:
    """The file, if it holds what it held: a summary from elsewhere opens nothing but what it knows already."""
    try:
        if not path.name.endswith((".nii", ".nii.gz")) or not path.is_file():
            return None
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except (OSError, ValueError):
        return None
    return path if same else None
