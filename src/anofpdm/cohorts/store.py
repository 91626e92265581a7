"""A prepared cohort on disk: slices in one memory-mapped file, labels and splits in CSV tables.

manifest.json       origin, preparation settings, hashes; written last, so that it marks a complete cohort
slices.npy          float16 [N, C, size, size] in [-1, 1]
slices.csv          scan, slice, label                        one row per row of slices.npy
scans.csv           scan, patient, slices, native_slices, pixel_mm, spacing_mm, mask, and label of whole scans if any
split.csv           patient, split
contact_sheet.png   an overview of slices
truth/masks.npy     lesions, bits packed [N, size, size / 8]; only opened by evaluation
"""

import csv
import errno
import hashlib
import io
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, ClassVar

import numpy as np

from anofpdm.cohorts.writer import JOURNAL, MANIFEST, SLICES, TABLES, Manifest, ScanEntry
from anofpdm.errors import NO_ORIENTATION, CohortError
from anofpdm.labels import LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.util.artifacts import convert, decode
from anofpdm.util.files import encode_csv, read_regular_file, unescape_cell

UNHEALTHY_SCAN = LABEL_NAMES[UNHEALTHY]
MAX_NOTES = 10  # scans
DARK = -0.95  # pixels whose mean over modalities is at most this are background


@dataclass(frozen=True)
class Cohort:
    """Labelled slices; lesion masks are not accessible from here."""

    FORMAT: ClassVar[int] = 1

    path: Path
    manifest: Manifest
    slices: np.ndarray  # [N, C, size, size] float16, memory-mapped
    labels: np.ndarray  # [N]
    scans: np.ndarray  # [N], names
    patients: np.ndarray  # [N], names
    splits: np.ndarray  # [N], train, val or test
    indices: np.ndarray  # [N], axial index in the native scan, counted from the inferior end
    pixel_mm: np.ndarray  # [N], edge of a network pixel
    spacing_mm: np.ndarray  # [N], between neighbouring native slices
    has_mask: np.ndarray  # [N], whether the scan has a lesion mask
    suspected: np.ndarray  # [N], whether its scan is labelled unhealthy as a whole, and the slice is not labelled

    @property
    def modalities(self) -> tuple[str, ...]:
        return self.manifest.preparation.modalities

    @property
    def assumed_labels(self) -> np.ndarray:
        """[N]: as if all unlabelled slices of scans that are labelled unhealthy as a whole were unhealthy."""
        return np.where(self.suspected, UNHEALTHY, self.labels)

    @property
    def notes(self) -> list[str]:
        """Lines on what was noticed when the scans were prepared."""
        lines = [f"note: {scan}: {'; '.join(notes)}" for scan, notes in self.manifest.warnings.items()]
        more = len(lines) - MAX_NOTES
        return lines[:MAX_NOTES] + [f"notes on {more} more scans are in {self.path / MANIFEST}"] * (more > 0)

    def __len__(self) -> int:
        return len(self.labels)

    def oriented(self, row: int) -> bool:
        """Whether the scan's left and right are known."""
        notes = self.manifest.warnings.get(self.scans[row], [])
        return not any(NO_ORIENTATION in note for note in notes)

    def rows(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.splits == split)

    def pixels(self, rows: np.ndarray | Sequence[int]) -> np.ndarray:
        """[B, C, size, size] float32."""
        return self.slices[rows].astype(np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_cohort, (self.path,)  # a worker process opens the file instead of receiving gigabytes


def foreground(pixels: np.ndarray) -> np.ndarray:
    """[N, C, H, W] in [-1, 1] -> bool [N, H, W]: inside the head."""
    return np.asarray(pixels.mean(axis=1) > DARK)


def open_cohort(path: Path | str) -> Cohort:
    path = Path(path)
    manifest = _read_manifest(path)
    for name, digest in manifest.tables_sha256.items():
        if hashlib.sha256(_read(path / name)).hexdigest() != digest:
            raise CohortError(
                f"{path / name} was changed after preparation; to use other labels or another split, run "
                "`anofpdm prepare` with --labels or --split and --overwrite"
            )
    return read_cohort(path, manifest)


def read_cohort(path: Path, manifest: Manifest) -> Cohort:
    """Open a cohort whose manifest has been checked."""
    try:
        rows = _read_table(path / "slices.csv")
        scans = {scan["scan"]: scan for scan in _read_table(path / "scans.csv")}
        split = {row["patient"]: row["split"] for row in _read_table(path / "split.csv")}
        its_scan = [scans[row["scan"]] for row in rows]
        labels = np.array([LABEL_NAMES.index(row["label"]) for row in rows])
        in_unhealthy = np.array([scan.get("label") == UNHEALTHY_SCAN for scan in its_scan], dtype=bool)
        size, channels = manifest.preparation.size, len(manifest.preparation.modalities)
        cohort = Cohort(
            path=path,
            manifest=manifest,
            slices=open_array(path / SLICES, (len(rows), channels, size, size), np.float16),
            labels=labels,
            scans=np.array([row["scan"] for row in rows]),
            patients=np.array([scan["patient"] for scan in its_scan]),
            splits=np.array([split[scan["patient"]] for scan in its_scan]),
            indices=np.array([int(row["slice"]) for row in rows]),
            pixel_mm=np.array([float(scan["pixel_mm"]) for scan in its_scan]),
            spacing_mm=np.array([float(scan["spacing_mm"]) for scan in its_scan]),
            has_mask=np.array([scan["mask"] == "1" for scan in its_scan]),
            suspected=in_unhealthy & (labels == NULL),
        )
    except (KeyError, ValueError, TypeError, OSError, EOFError, csv.Error) as problem:
        raise CohortError(f"{path}: damaged ({problem}); prepare it again with --overwrite") from None
    if len(rows) != manifest.slices:
        raise CohortError(
            f"{path}: damaged ({len(rows)} labels, {manifest.slices} slices in the manifest); "
            "prepare it again with --overwrite"
        )
    return cohort


def check_slices(cohort: Cohort, rows: np.ndarray) -> None:
    """Compare the slices of these rows' scans with their hashes, to detect disk errors."""
    journal = cohort.path / JOURNAL
    if not journal.is_file():
        return
    try:
        entries = [decode(ScanEntry, line) for line in _read(journal).splitlines()[1:]]
        hashes = {entry.scan: entry.sha256 for entry in entries}
    except ValueError as problem:
        raise CohortError(f"{journal}: damaged ({problem}); prepare the cohort again with --overwrite") from None
    if hashlib.sha256("".join(hashes.values()).encode()).hexdigest() != cohort.manifest.slices_sha256:
        raise CohortError(f"{journal}: belongs to other slices; re-run the same `anofpdm prepare`, or add --overwrite")
    names, starts, counts = np.unique(cohort.scans, return_index=True, return_counts=True)
    wanted = set(cohort.scans[rows].tolist())
    for name, start, count in zip(names.tolist(), starts, counts, strict=True):
        if name in wanted and hashlib.sha256(cohort.slices[start : start + count].data).hexdigest() != hashes.get(name):
            raise CohortError(
                f"{cohort.path / SLICES}: damaged, the slices of {name} do not match their hash; "
                "copy it again, or prepare the cohort again with --overwrite"
            )


def cohort_tables(
    entries: Sequence[ScanEntry], labels: Sequence[np.ndarray], unhealthy: Collection[str]
) -> dict[str, bytes]:
    """The three CSV files, by name. `unhealthy`: scans that are labelled unhealthy as a whole."""
    slices = [
        (entry.scan, index, LABEL_NAMES[label])
        for entry, of_scan in zip(entries, labels, strict=True)
        for index, label in zip(entry.indices, of_scan, strict=True)
    ]
    scans = [
        (entry.scan, entry.patient, len(entry.indices), entry.n_native, entry.pixel_mm, entry.spacing_mm,
         int(entry.lesion is not None), UNHEALTHY_SCAN if entry.scan in unhealthy else "")
        for entry in entries
    ]  # fmt: skip
    columns = ("scan", "patient", "slices", "native_slices", "pixel_mm", "spacing_mm", "mask", "label")
    count = len(columns) if unhealthy else len(columns) - 1
    split = {entry.patient: entry.split for entry in entries}
    return {
        "slices.csv": encode_csv(("scan", "slice", "label"), slices),
        "scans.csv": encode_csv(columns[:count], [scan[:count] for scan in scans]),
        "split.csv": encode_csv(("patient", "split"), sorted(split.items())),
    }


def _read_manifest(path: Path) -> Manifest:
    if not (path / MANIFEST).is_file():
        if (path / JOURNAL).is_file():
            raise CohortError(f"{path}: incomplete cohort; re-run the same `anofpdm prepare` to finish it")
        raise CohortError(f"{path}: not a prepared cohort (no {MANIFEST}); create one with `anofpdm prepare`")
    try:
        payload = json.loads(read_regular_file(path / MANIFEST))
        if payload["format"] != Cohort.FORMAT:
            raise CohortError(
                f"{path}: format {payload['format']}, but this version of anofpdm reads {Cohort.FORMAT}; "
                "prepare it again"
            )
        manifest = convert(Manifest, payload)
        if set(manifest.tables_sha256) != set(TABLES):
            raise ValueError("tables_sha256 does not list the tables")
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as problem:
        raise CohortError(f"{path / MANIFEST}: damaged ({problem}); prepare it again with --overwrite") from None
    return manifest


def open_array(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Memory-map an .npy file, which must have exactly this shape and type."""
    try:
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        header = array.offset  # type: ignore[attr-defined]
        if array.shape != shape or array.dtype != dtype or path.stat().st_size != header + array.nbytes:
            raise ValueError(
                f"{array.dtype} {list(array.shape)} in {path.stat().st_size:,} bytes, expected {list(shape)}"
            )
    except (ValueError, TypeError, OSError, EOFError, OverflowError, SyntaxError, TokenError) as problem:
        raise CohortError(f"{path}: damaged ({problem}); prepare the cohort again with --overwrite") from None
    return array


def _read(path: Path) -> bytes:
    try:
        return read_regular_file(path)
    except OSError as problem:
        raise CohortError(f"{path}: {problem.strerror}; prepare the cohort again with --overwrite") from None


def _read_table(path: Path) -> list[dict[str, str]]:
    rows = csv.reader(io.StringIO(_read(path).decode(), newline=""))
    columns = next(rows, [])
    return [dict(zip(columns, map(unescape_cell, row), strict=True)) for row in rows if row]
