"""Hand-written CSV files: image-level labels and splits. Errors name the line."""

import csv
import difflib
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anofpdm.choices import Split
from anofpdm.errors import CohortError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.util.files import read_regular_file, unescape_cell

LABELS = {"0": HEALTHY, "healthy": HEALTHY, "1": UNHEALTHY, "unhealthy": UNHEALTHY}
LABELS |= dict.fromkeys(("", "unlabelled", "unlabeled", "unknown"), NULL)
SPLITS = {str(split): split for split in Split}
SPLITS |= {"training": Split.TRAIN, "valid": Split.VAL, "validation": Split.VAL}


class LabelRow(NamedTuple):
    label: int
    line: int  # of the file


@dataclass(frozen=True)
class GivenLabels:
    """Image-level labels from a CSV file with the columns subject, slice, label."""

    path: Path
    rows: dict[str, dict[int | None, LabelRow]] = field(default_factory=dict)  # by subject and slice; None: the scan

    def rows_of(self, scan: str, patient: str) -> dict[int | None, LabelRow]:
        """A scan is listed under its own name, or that of its patient."""
        return self.rows.get(scan) or self.rows.get(patient, {})

    def slices_of(self, scan: str, patient: str) -> dict[int, LabelRow]:
        """Of the slices that have rows of their own."""
        return {index: row for index, row in self.rows_of(scan, patient).items() if index is not None}

    def scan_label(self, scan: str, patient: str) -> int:
        """Of the whole scan."""
        return self.rows_of(scan, patient).get(None, LabelRow(NULL, 0)).label

    def slice_labels(self, scan: str, patient: str, n_slices: int) -> np.ndarray:
        """[n_slices]: slices of a healthy scan are healthy; slices of an unhealthy scan need rows of their own."""
        labels = np.full(n_slices, HEALTHY if self.scan_label(scan, patient) == HEALTHY else NULL)
        for index, (label, line) in self.slices_of(scan, patient).items():
            if index >= n_slices:
                raise CohortError(
                    f"{self.path}, line {line}: slice {index} of {scan} does not exist, "
                    f"it has slices 0 to {n_slices - 1} (counted from the inferior end); correct the row"
                )
            labels[index] = label
        return labels

    def check_known(self, scans: Collection[str]) -> None:
        """Refuse rows of scans that do not exist, and suggest the nearest name."""
        unknown = sorted(self.rows.keys() - set(scans))
        if unknown:
            first = next(iter(self.rows[unknown[0]].values()))
            near = difflib.get_close_matches(unknown[0], list(scans), n=1, cutoff=0)
            others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise CohortError(
                f"{self.path}, line {first.line}: no scan is named {unknown[0]}{others} (nearest: {near[0]}); correct "
                "the name or remove the row"
            )


def read_labels(path: Path) -> GivenLabels:
    given = GivenLabels(path)
    for line, row in read_rows(path, ("subject", "label"), optional="slice"):
        where = f"{path}, line {line}"
        subject, index = row["subject"], _strip_decimals(row.get("slice", ""))
        label = LABELS.get(_strip_decimals(row["label"]).lower())
        if not subject:
            raise CohortError(f"{where}: no subject; enter the name of the scan")
        if label is None:
            raise CohortError(
                f"{where}: invalid label {row['label']!r}; use healthy (0), unhealthy (1) or unknown (empty)"
            )
        if index and not (index.isdecimal() and len(index) < 10):
            raise CohortError(
                f"{where}: invalid slice {index!r}; use an integer from 0, or leave it empty for the whole scan"
            )
        rows = given.rows.setdefault(subject, {})
        if rows.setdefault(int(index) if index else None, LabelRow(label, line)).label != label:
            raise CohortError(f"{where}: contradicts an earlier row of {subject}; keep one of them")
    return given


def read_split(path: Path) -> dict[str, Split]:
    """Patient (or scan) to train, val or test."""
    splits: dict[str, Split] = {}
    for line, row in read_rows(path, ("patient", "split")):
        split = SPLITS.get(row["split"].lower())
        if split is None:
            raise CohortError(f"{path}, line {line}: invalid split {row['split']!r}; use train, val or test")
        if splits.setdefault(row["patient"], split) != split:
            raise CohortError(
                f"{path}, line {line}: {row['patient']} is already in {splits[row['patient']]}; keep one row"
            )
    return splits


def read_rows(path: Path, needed: tuple[str, ...], optional: str = "") -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and stripped cells of each row; the separator is detected, a byte-order mark is allowed."""
    try:
        text = unicodedata.normalize("NFC", read_regular_file(path).decode("utf-8-sig"))
    except FileNotFoundError:
        columns = ",".join(filter(None, (*needed, optional)))
        raise CohortError(f"{path}: does not exist; write it (columns {columns}), or give another file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise CohortError(
            f"{path}: cannot be read as a CSV file ({problem}); check the path and save it as UTF-8"
        ) from None
    first = text.partition("\n")[0]
    reader = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=first.count))
    is_empty = True
    try:
        reader.fieldnames = [(column or "").strip().lower() for column in reader.fieldnames or []]
        _check_columns(path, reader.fieldnames, needed, optional)
        for row in reader:
            if None in row or any(row[column] is None for column in needed):  # too many cells, or too few
                raise CohortError(
                    f"{path}, line {reader.line_num}: number of cells and columns differ; correct the row"
                )
            cells = {key: unescape_cell((value or "").strip()) for key, value in row.items()}
            if any(cells.values()):
                is_empty = False
                yield reader.line_num, cells
    except csv.Error as problem:  # an unterminated cell
        where = f"{path}, line {reader.reader.line_num}"
        raise CohortError(f"{where}: cannot be read ({problem}); correct the row") from None
    if is_empty:
        raise CohortError(f"{path}: no rows; add some")


def _check_columns(path: Path, columns: Sequence[str], needed: tuple[str, ...], optional: str) -> None:
    given = ", ".join(columns) or "none"
    for column in needed:
        if column not in columns:
            raise CohortError(f"{path}: no column {column!r} (found: {given}); add it")
        if columns.count(column) > 1:
            raise CohortError(f"{path}: duplicate column {column!r}; keep one")
    # A misspelt column "slice" would turn the label of one slice into a label of the whole scan.
    if optional and optional not in columns and set(columns) - set(needed):
        raise CohortError(
            f"{path}: no column {optional!r} (found: {given}); add it, or keep {' and '.join(needed)} alone"
        )


def _strip_decimals(number: str) -> str:
    """'30.0', as some programs write a column with gaps, to '30'."""
    return re.sub(r"^(\d+)\.0+$", r"\1", number)
