"""Results on disk, and which of their files may be downloaded: result files, and the scans named in the summary as long
as they are unchanged. A client gives a key and a role; both are looked up, and neither becomes part of a path."""

import csv
import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from anofpdm.report.summary import Summary
from anofpdm.segment import outputs
from anofpdm.segment.outputs import ResultFiles
from anofpdm.util.files import file_sha256
from anofpdm.viewer.limits import RequestError, scan_not_found
from anofpdm.viewer.schemas import Numbers, ResultListItem

FILES = {
    "mask": outputs.MASK,
    "map": outputs.ANOMALY_MAP,
    "findings": outputs.FINDINGS,
    "slices": outputs.SLICES,
    "summary": outputs.SUMMARY,
    "picture": outputs.OVERVIEW,
    "report": outputs.REPORT,
    "dicom-seg": outputs.DICOM_SEG,
    "dicom-picture": outputs.DICOM_CAPTURE,
}  # by role
SCAN = "scan-"  # prefix of a modality: the role of a scan
MAX_TABLE_BYTES = 4 << 20  # of a summary or a table of findings


@dataclass(frozen=True)
class Result:
    key: str
    title: str
    files: dict[str, Path]  # by role
    summary: Summary
    scan_folder: Path  # for names of scans that are relative
    unreadable: str | None = None  # why; the summary is then empty

    def file(self, role: str) -> Path:
        path = self.files.get(role) or (self._scan(role.removeprefix(SCAN)) if role.startswith(SCAN) else None)
        if path is None or not path.is_file():
            raise RequestError(404, "This result has no such file.")
        return path

    def scans(self) -> dict[str, Path]:
        """By modality: those named in the summary that are unchanged."""
        named = {name: self._scan(name) for name in self.summary.inputs}
        return {name: path for name, path in named.items() if path is not None}

    def list_item(self) -> ResultListItem:
        numbers = {} if self.unreadable else {name: getattr(self.summary, name) for name in Numbers.model_fields}
        warnings = len(self.summary.warnings)
        return ResultListItem(key=self.key, title=self.title, warnings=warnings, unreadable=self.unreadable, **numbers)

    def lesions(self) -> list[dict[str, float]]:
        """Rows of the table of findings, largest first; none if the table is damaged."""
        try:
            text = _read_limited(self.file("findings")).decode()
            rows = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(text.splitlines())]
        except (OSError, ValueError, TypeError, RequestError, csv.Error):
            return []
        return rows if all(math.isfinite(cell) for row in rows for cell in row.values()) else []

    def _scan(self, modality: str) -> Path | None:
        """If it is a NIfTI file with the hash in the summary: a manipulated summary gives access to no other file."""
        source = self.summary.inputs.get(modality)
        if source is None:
            return None
        path = self.scan_folder / source.file
        try:
            if not path.name.endswith((".nii", ".nii.gz")) or not path.is_file():
                return None
            return path if file_sha256(path) == source.sha256 else None
        except (OSError, ValueError):
            return None


# ---- a folder of results ---------------------------------------------------------------------------------------------


class ResultFolder:
    """Searched at every listing, since `segment` may still be writing to it."""

    def __init__(self, root: Path):
        self._root = root.resolve()
        self._results: dict[str, Result] = {}

    def search(self) -> list[Result]:
        self._results = {result.key: result for result in _find_results(self._root)}
        return list(self._results.values())

    def get(self, key: str) -> Result:
        result = self._results.get(key)
        if result is None:
            raise scan_not_found()
        return result


def _find_results(root: Path) -> Iterator[Result]:
    for folder, subfolders, names in os.walk(root):
        path = Path(folder)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            place = ResultFiles.of_summary(path / name)
            if place is not None and (result := read_result(root, place)) is not None:
                yield result


def read_result(
    root: Path, place: ResultFiles, *, key: str | None = None, title: str = "", scan_folder: Path = Path()
) -> Result | None:
    """None if there is no summary; or it cannot be read and there is no mask: it is that of another program."""
    path = place.path(outputs.SUMMARY)
    if not os.path.lexists(path):
        return None
    scan = place.stem or place.folder.relative_to(root).as_posix()
    title = title or _printable(scan if scan != "." else root.name)
    key = key or hashlib.sha256(os.fsencode(path)).hexdigest()[:20]
    files, summary, unreadable = _find_files(root, place), Summary(volume_ml=0), None
    try:
        if "summary" not in files:
            raise ValueError("not a regular file in this folder")
        summary = Summary.decode(_read_limited(files["summary"]))
        msgspec.json.encode(summary)  # raises where a name is not UTF-8
    except (OSError, ValueError) as problem:
        if "mask" not in files:
            return None
        unreadable = f"{_printable(path.name)}: {getattr(problem, 'strerror', None) or problem}"
    return Result(key, title, files, summary, scan_folder, unreadable)


def _find_files(root: Path, place: ResultFiles) -> dict[str, Path]:
    """Regular files below the root, also after links are resolved, by role; with the masks of a raw study on the grids
    of its series."""
    paths = {role: place.path(file) for role, file in FILES.items()}
    paths |= {_printable(f"mask-on-{series}"): path for series, path in place.by_series(outputs.MASK).items()}
    return {role: path for role, path in paths.items() if path.is_file() and path.resolve().is_relative_to(root)}


def _printable(name: str) -> str:
    """Of a file; names that are not UTF-8 cannot be sent."""
    return os.fsencode(name).decode(errors="replace")


def _read_limited(path: Path) -> bytes:
    if path.stat().st_size > MAX_TABLE_BYTES:
        raise ValueError(f"larger than {MAX_TABLE_BYTES >> 20} MiB")
    return path.read_bytes()
