"""Writing a prepared cohort so that a run can be interrupted at any time and resumed.

Slices (and masks, in a file of their own) are appended to two growing arrays; only then is the scan added to a
journal, one line per scan. A resumed run truncates the arrays to what the journal lists and continues. The cohort is
complete when its manifest exists, which is written last.
"""

import io
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from anofpdm.errors import CohortError
from anofpdm.util.artifacts import decode, to_plain
from anofpdm.util.files import translate_write_errors, write_atomically

JOURNAL, SLICES, MASKS, MANIFEST = "journal.jsonl", "slices.npy", "truth/masks.npy", "manifest.json"
SHEET = "contact_sheet.png"
RAW_FOLDER = "preparation"  # brain masks and transforms of raw studies
TABLES = ("slices.csv", "scans.csv", "split.csv")
ALL_FILES = (MANIFEST, JOURNAL, SLICES, MASKS, *TABLES, SHEET)


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

    FORMAT: ClassVar[int] = 2

    format: int = FORMAT
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

    def __post_init__(self) -> None:
        if self.format != self.FORMAT:
            raise ValueError(f"format {self.format}, but this version of anofpdm reads {self.FORMAT}")
        if set(self.tables_sha256) != set(TABLES):
            raise ValueError("tables_sha256 does not list the tables")


@dataclass(frozen=True, kw_only=True)
class ScanEntry:
    """The journal's record of one prepared scan."""

    scan: str
    patient: str
    split: str = ""  # set when the scan is added to the cohort
    sources: list[tuple[str, int, int]]  # of each file, path relative to the source folder, bytes, mtime in ns
    n_native: int  # axial slices of the scan
    indices: list[int]  # slices that were kept
    lesion: list[bool] | None = None  # per kept slice; None without a mask
    pixel_mm: float  # of a network pixel
    spacing_mm: float  # between neighbouring native slices
    sha256: str  # of the prepared slices
    warnings: list[str]
    skull: bool = False  # whether the scan shows more than the brain
    position: dict[str, list[float]] | None = None  # in template space; measured for some scans of a cohort


class StoreWriter:
    def __init__(self, folder: Path, settings: Settings):
        self.folder, self.settings = folder, settings
        size = settings.size
        with translate_write_errors(folder / JOURNAL):
            self.entries = self._read_journal()
        self._append_slices(np.empty((0, len(settings.modalities), size, size), np.float16), None)

    def append(self, entry: ScanEntry, pixels: np.ndarray, masks: np.ndarray | None) -> None:
        """pixels [n, C, size, size] float16; masks [n, size, size] bool. Data first, then the journal."""
        with translate_write_errors(self.folder / MANIFEST):
            (self.folder / MANIFEST).unlink(missing_ok=True)  # incomplete from here on
        self._append_slices(pixels, masks)
        with translate_write_errors(self.folder / JOURNAL), (self.folder / JOURNAL).open("ab") as file:
            file.write(_journal_line(entry))
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(entry)

    def _append_slices(self, pixels: np.ndarray, masks: np.ndarray | None) -> None:
        n_before = sum(len(entry.indices) for entry in self.entries)
        append_rows(self.folder / SLICES, pixels, n_before)
        if self.settings.masks:
            lesions = np.zeros((len(pixels), *pixels.shape[2:]), bool) if masks is None else masks
            append_rows(self.folder / MASKS, np.packbits(lesions, axis=-1), n_before)

    def _read_journal(self) -> list[ScanEntry]:
        """Scans prepared so far. An incomplete last line was being written when the run was killed: remove it."""
        journal = self.folder / JOURNAL
        content = journal.read_bytes() if journal.is_file() else b""
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
        try:
            previous = [decode(Settings, line) for line in lines[:1]]
            entries = [decode(ScanEntry, line) for line in lines[1:]]
        except ValueError as problem:
            raise CohortError(f"{journal}: damaged ({problem}); start again with --overwrite") from None
        if not entries:  # no scan yet, so nothing to contradict
            write_atomically(journal, _journal_line(self.settings))
            return []
        os.truncate(journal, sum(map(len, lines)))
        if previous != [self.settings]:
            changed = [name for name, value in vars(self.settings).items() if getattr(previous[0], name) != value]
            raise CohortError(
                f"{self.folder} was started with other settings ({', '.join(changed)} differ); "
                "choose another folder, or start again with --overwrite"
            )
        return entries


def append_rows(path: Path, rows: np.ndarray, n_before: int) -> None:
    """Write rows to an .npy file after its first `n_before` ones. What an interrupted run left there is removed."""
    buffer = io.BytesIO()
    shape = (n_before + len(rows), *rows.shape[1:])
    np.lib.format.write_array_header_1_0(buffer, {"descr": rows.dtype.str, "fortran_order": False, "shape": shape})
    header = buffer.getvalue()  # numpy pads it for a growing first axis, so that its length does not change
    start = len(header) + n_before * math.prod(rows.shape[1:]) * rows.itemsize
    if n_before and (not path.is_file() or path.stat().st_size < start):
        raise CohortError(f"{path}: shorter than its journal states, it was changed; start again with --overwrite")
    with translate_write_errors(path):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        with path.open("r+b") as file:
            file.write(header)
            file.truncate(start)
            file.seek(start)
            file.write(rows.tobytes())
            file.flush()
            os.fsync(file.fileno())


def _journal_line(content: Settings | ScanEntry) -> bytes:
    return json.dumps(to_plain(content)).encode() + b"\n"
