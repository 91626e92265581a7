"""The CSV files that people write by hand: image-level labels and splits. Mistakes are named by line."""

import csv
import difflib
import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import CohortError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.util.files import read_regular_file

LABELS = {
    "0": HEALTHY,
    "healthy": HEALTHY,
    "1": UNHEALTHY,
    "unhealthy": UNHEALTHY,
    "": NULL,
    "2": NULL,
    "unlabelled": NULL,
    "unlabeled": NULL,
    "unknown": NULL,
}
SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class GivenLabels:
    """Image-level labels from a CSV file with the columns subject, slice, label."""

    path: Path
    scans: dict[str, int] = field(default_factory=dict)  # rows without a slice
    slices: dict[str, dict[int, int]] = field(default_factory=dict)

    @property
    def subjects(self) -> set[str]:
        return {*self.scans, *self.slices}

    def of(self, subject: str, n_slices: int) -> np.ndarray:
        """[n_slices]: a healthy scan has healthy slices; which slices of an unhealthy one are ill, only rows tell."""
        labels = np.full(n_slices, HEALTHY if self.scans.get(subject) == HEALTHY else NULL)
        for index, label in self.slices.get(subject, {}).items():
            if index >= n_slices:
                raise CohortError(
                    f"{self.path} labels slice {index} of {subject}, which has slices 0 to {n_slices - 1} "
                    "(counted from the inferior end); correct the row"
                )
            labels[index] = label
        return labels


def read_labels(path: Path) -> GivenLabels:
    given = GivenLabels(path)
    for line, row in _rows(path, ("subject", "label"), optional="slice"):
        place = f"{path}, line {line}"
        subject, index = row["subject"], _whole(row.get("slice", ""))
        label = LABELS.get(_whole(row["label"]).lower())
        if not subject:
            raise CohortError(f"{place}: no subject; name the scan")
        if label is None:
            raise CohortError(f"{place}: label {row['label']!r}; write healthy (0) or unhealthy (1), or leave it empty")
        if index and not (index.isdecimal() and len(index) < 10):
            raise CohortError(f"{place}: slice {index!r}; write a whole number from 0, or nothing for the whole scan")
        if index:
            earlier = given.slices.setdefault(subject, {}).setdefault(int(index), label)
        else:
            earlier = given.scans.setdefault(subject, label)
        if earlier != label:
            raise CohortError(f"{place}: contradicts an earlier row on {subject}; keep one of them")
    return given


def read_split(path: Path) -> dict[str, str]:
    """Patient (or scan) to train, val or test."""
    splits: dict[str, str] = {}
    for line, row in _rows(path, ("patient", "split")):
        split = SPLITS.get(row["split"].lower())
        if split is None:
            raise CohortError(f"{path}, line {line}: split {row['split']!r}; write train, val or test")
        if splits.setdefault(row["patient"], split) != split:
            raise CohortError(
                f"{path}, line {line}: {row['patient']} is already in {splits[row['patient']]}; keep one row"
            )
    return splits


def check_known(names: Collection[str], known: Collection[str], what: str) -> None:
    """Names in a file that no scan has are slips of the pen; the nearest name helps to see which."""
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], list(known), n=1, cutoff=0)
    others = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    hint = f"; nearest there is: {near[0]}" if near else ""
    raise CohortError(
        f"{what} names {unknown[0]}{others}, not among the scans{hint}; correct the name or remove the row"
    )


def _rows(path: Path, needed: tuple[str, ...], optional: str = "") -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and stripped cells of each row, whatever the separator and however the editor marked Unicode."""
    try:
        text = unicodedata.normalize("NFC", read_regular_file(path).decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as problem:
        raise CohortError(
            f"{path}: cannot be read as a CSV file ({problem}); check the path and save it as UTF-8"
        ) from None
    first = text.partition("\n")[0]
    reader = csv.DictReader(text.splitlines(), delimiter=max(",;\t", key=first.count))
    found = False
    for row in _parsed(reader, path, needed, optional):
        if row.get(None) or any(row[column] is None for column in needed):
            raise CohortError(f"{path}, line {reader.line_num}: more or fewer cells than columns; correct the row")
        cells = {key: (value or "").strip() for key, value in row.items()}
        if any(cells.values()):
            found = True
            yield reader.line_num, cells
    if not found:
        raise CohortError(f"{path}: no rows in it; fill it in")


def _parsed(
    reader: "csv.DictReader[str]", path: Path, needed: tuple[str, ...], optional: str
) -> Iterator[dict[str | Any, str | Any]]:
    try:
        reader.fieldnames = [(column or "").strip().lower() for column in reader.fieldnames or []]
        _check_columns(path, reader.fieldnames, needed, optional)
        yield from reader
    except csv.Error as problem:  # a cell without end
        raise CohortError(
            f"{path}, line {reader.reader.line_num}: cannot be read ({problem}); correct the row"
        ) from None


def _check_columns(path: Path, columns: Sequence[str], needed: tuple[str, ...], optional: str) -> None:
    said = ", ".join(columns) or "nothing"
    for column in needed:
        if column not in columns:
            raise CohortError(f"{path}: no column {column!r} (found: {said}); add it")
        if columns.count(column) > 1:
            raise CohortError(f"{path}: column {column!r} is there twice; keep one")
    # A misspelt name would turn a label of one slice into a label of the whole scan.
    if optional and optional not in columns and set(columns) - set(needed):
        raise CohortError(
            f"{path}: no column {optional!r} (found: {said}); add it, or keep {' and '.join(needed)} alone"
        )


def _whole(number: str) -> str:
    """'30.0', as some programs write a column with gaps, is 30."""
    return re.sub(r"^(\d+)\.0+$", r"\1", number)
