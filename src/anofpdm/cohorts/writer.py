"""Writing a prepared cohort so that a run can be interrupted at any time and resumed.

Slices (and masks, in a file of their own) are appended to two growing arrays; only then is the scan added to a
journal, one line per scan. A resumed run truncates the arrays to what the journal lists and continues. The cohort is
complete when its manifest exists, which is written last.
"""

import io
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from anofpdm.errors import CohortError
from anofpdm.util.artifacts import decode, to_plain
from anofpdm.util.files import translate_write_errors

JOURNAL, SLICES, MASKS, MANIFEST = "journal.jsonl", "slices.npy", "truth/masks.npy", "manifest.json"
SHEET = "contact_sheet.png"
RAW_FOLDER = "preparation"  # brain masks and transforms of raw studies
TABLES = ("slices.csv", "scans.csv", "split.csv")
ALL_FILES = (MANIFEST, JOURNAL, SLICES, MASKS, *TABLES, SHEET)
HEADER_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What determines the slices of a scan. Cohorts with equal hashes of this can be combined."""

    version: int
    modalities: tuple[str, ...]
    size: int
    bright_percentile: float
    least_foreground: float
    resize: str = "area, aspect ratio kept, padded"
    raw: str | None = None  # always or never; None: auto
    keep_skull: bool | None = None
    template: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings(Preparation):
    """What a resumed run must have in common with the run it resumes; the first line of the journal."""

    kind: str  # layout
    masks: bool
    split: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """manifest.json of a complete cohort."""

    format: int
    anofpdm: str  # version
    kind: str  # layout
    source: str
    labels: str
    isolated_labels: str | None = None  # kept or left out
    fill_labels_mm: float | None = None
    split: str
    preparation: Preparation
    preparation_sha256: str
    slices_sha256: str
    tables_sha256: dict[str, str]
    scans: int
    slices: int
    failed: dict[str, str] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    expects: dict[str, Any] = field(default_factory=dict)  # a ScanExpectation, which needs more than numpy


@dataclass(frozen=True, kw_only=True)
class ScanEntry:
    """The journal's record of one prepared scan."""

    scan: str
    patient: str
    split: str
    sources: dict[str, tuple[str, int, int]]  # role to path relative to the source folder, bytes, mtime in ns
    n_native: int  # axial slices of the scan
    indices: list[int]  # slices that were kept
    lesion: list[bool] | None = None  # per kept slice; None without a mask
    pixel_mm: float  # of a network pixel
    spacing_mm: float  # between neighbouring native slices
    sha256: str  # of the prepared slices
    warnings: list[str]
    skull: bool = False  # whether the scan shows more than the brain
    position: dict[str, list[float]] | None = None  # in template space; measured for some scans of a cohort


class GrowingArray:
    """An .npy file that rows are appended to. Its header, of fixed length, is completed on closing."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: type):
        self.row_shape, self.dtype = row_shape, np.dtype(dtype)
        self._row_bytes = int(np.prod(row_shape)) * self.dtype.itemsize
        self._path = path
        with translate_write_errors(path):
            path.parent.mkdir(exist_ok=True)
            path.touch()
            self._file = path.open("r+b")
            if path.stat().st_size < HEADER_BYTES:  # new, or the disk was full while the header was written
                self._write_header(0)

    def append(self, rows: np.ndarray) -> None:
        """Append and flush to disk."""
        with translate_write_errors(self._path):
            self._file.seek(0, os.SEEK_END)
            self._file.write(np.ascontiguousarray(rows).data)
            _flush(self._file)

    def truncate(self, n_rows: int) -> None:
        length = HEADER_BYTES + n_rows * self._row_bytes
        if os.fstat(self._file.fileno()).st_size < length:
            raise CohortError(
                f"{self._file.name}: shorter than its journal states, it was changed; start again with --overwrite"
            )
        self._file.truncate(length)

    def close(self, n_rows: int | None = None) -> None:
        with translate_write_errors(self._path):
            if n_rows is not None:
                self._write_header(n_rows)
                _flush(self._file)
            self._file.close()

    def _write_header(self, n_rows: int) -> None:
        shape = (n_rows, *self.row_shape)
        description = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, description)  # numpy pads it for a growing first axis
        if len(header.getvalue()) != HEADER_BYTES:
            raise ValueError(f".npy header of {len(header.getvalue())} bytes, expected {HEADER_BYTES}")
        self._file.seek(0)
        self._file.write(header.getvalue())
        self._file.flush()


class StoreWriter:
    def __init__(self, folder: Path, settings: Settings):
        self.folder = folder
        journal = folder / JOURNAL
        journal.touch()
        self._journal = journal.open("r+b")
        self.entries = self._read_journal(settings)
        size = settings.size
        self._slices = GrowingArray(folder / SLICES, (len(settings.modalities), size, size), np.float16)
        self._masks = GrowingArray(folder / MASKS, (size, (size + 7) // 8), np.uint8) if settings.masks else None
        self._arrays = [self._slices] if self._masks is None else [self._slices, self._masks]
        for array in self._arrays:
            array.truncate(self.n_slices)

    @property
    def n_slices(self) -> int:
        return sum(len(entry.indices) for entry in self.entries)

    def append(self, entry: ScanEntry, pixels: np.ndarray, masks: np.ndarray | None) -> None:
        """pixels [n, C, size, size] float16; masks [n, size, size] bool. Data first, then the journal."""
        (self.folder / MANIFEST).unlink(missing_ok=True)  # incomplete from here on
        self._slices.append(pixels)
        if self._masks is not None:
            truth = np.zeros((len(pixels), *pixels.shape[2:]), bool) if masks is None else masks
            self._masks.append(np.packbits(truth, axis=-1))
        self._write_line(entry)
        self.entries.append(entry)

    def close(self, *, complete: bool) -> None:
        for array in self._arrays:
            array.close(self.n_slices if complete else None)
        self._journal.close()

    def _read_journal(self, settings: Settings) -> list[ScanEntry]:
        """Scans prepared so far. An incomplete last line was being written when the run was killed: remove it."""
        text, _, _ = self._journal.read().rpartition(b"\n")
        lines = text.split(b"\n") if text else []
        if len(lines) < 2:  # no scan yet, so nothing to contradict
            self._journal.seek(0)
            self._journal.truncate()
            self._write_line(settings)
            return []
        self._journal.seek(len(text) + 1)
        self._journal.truncate()
        try:
            previous, entries = decode(Settings, lines[0]), [decode(ScanEntry, line) for line in lines[1:]]
        except ValueError as problem:
            raise CohortError(f"{self._journal.name}: damaged ({problem}); start again with --overwrite") from None
        if previous != settings:
            changed = [name for name, value in vars(settings).items() if getattr(previous, name) != value]
            raise CohortError(
                f"{self.folder} was started with other settings ({', '.join(changed)} differ); "
                "choose another folder, or start again with --overwrite"
            )
        return entries

    def _write_line(self, content: Settings | ScanEntry) -> None:
        with translate_write_errors(self.folder / JOURNAL):
            self._journal.write(json.dumps(to_plain(content)).encode() + b"\n")
            _flush(self._journal)


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
