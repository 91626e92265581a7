"""A prepared cohort on disk: slices in one memory-mapped file, labels and splits in CSV tables.

manifest.json       origin, preparation settings, hashes; written last, so that it marks a complete cohort
slices.npy          float16 [N, C, size, size] in [-1, 1]
slices.csv          scan, slice, label                        one row per row of slices.npy
scans.csv           scan, patient, slices, native_slices, pixel_mm, spacing_mm, mask, label of the whole scan, sha256
split.csv           patient, split
contact_sheet.png   an overview of slices
truth/masks.npy     lesions, bits packed [N, size, size / 8]; only opened by evaluation
"""

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

import numpy as np

from anofpdm.choices import Split
from anofpdm.cohorts.writer import JOURNAL, MANIFEST, SLICES, TABLES, Manifest
from anofpdm.errors import NO_ORIENTATION, CohortError
from anofpdm.labels import LABEL_NAMES, NULL, UNHEALTHY
from anofpdm.util.artifacts import decode
from anofpdm.util.files import read_regular_file, unescape_cell

MAX_NOTES = 10  # scans
DARK = -0.95  # pixels whose mean over modalities is at most this are background


@dataclass(frozen=True)
class Cohort:
    """Labelled slices; lesion masks are not accessible from here."""

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
    scan_sha256: dict[str, str]  # scan to hash of its slices
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

    def split_counts(self) -> dict[Split, list[int]]:
        """Of each split: number of patients, and of slices by label."""
        counts = {}
        for split in Split:
            rows = self.rows(split)
            of_labels = np.bincount(self.labels[rows], minlength=len(LABEL_NAMES))
            counts[split] = [len(np.unique(self.patients[rows])), *of_labels.tolist()]
        return counts

    def rows(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.splits == split)

    def pixels(self, rows: np.ndarray | Sequence[int]) -> np.ndarray:
        """[B, C, size, size] float32."""
        return self.slices[rows].astype(np.float32)


def foreground(pixels: np.ndarray) -> np.ndarray:
    """[N, C, H, W] in [-1, 1] -> bool [N, H, W]: inside the head."""
    return np.asarray(pixels.mean(axis=1) > DARK)


def open_cohort(path: Path | str) -> Cohort:
    return read_cohort(Path(path), _read_manifest(Path(path)))


def read_cohort(path: Path, manifest: Manifest) -> Cohort:
    """Open the cohort of this manifest."""
    slices, scans, split = (_read_table(path / name, manifest.tables_sha256[name]) for name in TABLES)
    names = slices["scan"].tolist()
    if len(names) != manifest.slices:
        raise CohortError(
            f"{path}: damaged ({len(names)} labels, {manifest.slices} slices in the manifest); "
            "prepare it again with --overwrite"
        )
    place = {name: number for number, name in enumerate(scans["scan"].tolist())}
    of_scan = np.array([place[name] for name in names])  # [N], rows of scans.csv
    labels, patients = np.array([LABEL_NAMES.index(name) for name in slices["label"]]), scans["patient"][of_scan]
    split_of = dict(zip(split["patient"], split["split"], strict=True))
    size, channels = manifest.preparation.size, len(manifest.preparation.modalities)
    return Cohort(
        path=path,
        manifest=manifest,
        slices=open_array(path / SLICES, (len(names), channels, size, size), np.float16),
        labels=labels,
        scans=slices["scan"],
        patients=patients,
        splits=np.array([split_of[patient] for patient in patients]),
        indices=slices["slice"].astype(int),
        pixel_mm=scans["pixel_mm"].astype(float)[of_scan],
        spacing_mm=scans["spacing_mm"].astype(float)[of_scan],
        has_mask=(scans["mask"] == "1")[of_scan],
        scan_sha256=dict(zip(scans["scan"].tolist(), scans["sha256"].tolist(), strict=True)),
        suspected=(scans["label"] == LABEL_NAMES[UNHEALTHY])[of_scan] & (labels == NULL),
    )


def check_slices(cohort: Cohort, rows: np.ndarray) -> None:
    """Compare the slices of these rows' scans with their hashes, to detect disk errors."""
    names, starts, counts = np.unique(cohort.scans, return_index=True, return_counts=True)
    wanted = set(cohort.scans[rows].tolist())
    for name, start, count in zip(names.tolist(), starts, counts, strict=True):
        slices = cohort.slices[start : start + count]
        if name in wanted and hashlib.sha256(slices.data).hexdigest() != cohort.scan_sha256[name]:
            raise CohortError(
                f"{cohort.path / SLICES}: damaged, the slices of {name} do not match their hash; "
                "copy it again, or prepare the cohort again with --overwrite"
            )


def _read_manifest(path: Path) -> Manifest:
    if not (path / MANIFEST).is_file():
        if (path / JOURNAL).is_file():
            raise CohortError(f"{path}: incomplete cohort; re-run the same `anofpdm prepare` to finish it")
        raise CohortError(f"{path}: not a prepared cohort (no {MANIFEST}); create one with `anofpdm prepare`")
    try:
        return decode(Manifest, read_regular_file(path / MANIFEST))
    except (ValueError, OSError) as problem:
        raise CohortError(f"{path / MANIFEST}: damaged ({problem}); prepare it again with --overwrite") from None


def open_array(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Memory-map an .npy file, which must have exactly this shape and type."""
    try:
        if not path.is_file():
            raise ValueError("no such file")
        array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        header = array.offset  # type: ignore[attr-defined]
        if array.shape != shape or array.dtype != dtype or path.stat().st_size != header + array.nbytes:
            raise ValueError(
                f"{array.dtype} {list(array.shape)} in {path.stat().st_size:,} bytes, expected {list(shape)}"
            )
    except (ValueError, TypeError, OSError, EOFError, OverflowError, SyntaxError, TokenError) as problem:
        raise CohortError(f"{path}: damaged ({problem}); prepare the cohort again with --overwrite") from None
    return array


def _read_table(path: Path, digest: str) -> dict[str, np.ndarray]:
    """Column to cells, as text."""
    try:
        data = read_regular_file(path)
    except OSError as problem:
        raise CohortError(f"{path}: {problem.strerror}; prepare the cohort again with --overwrite") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise CohortError(
            f"{path} was changed after preparation; to use other labels or another split, run `anofpdm prepare` with "
            "--labels or --split and --overwrite"
        )
    columns, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    cells = ([unescape_cell(cell) for cell in column] for column in zip(*rows, strict=True))
    return {name: np.array(column) for name, column in zip(columns, cells, strict=True)}
