"""Array jobs: each segments a part of the scans into one folder; their results are joined into one table.

DIR/parts/3-of-10.json is written at the end of each job: its scans, and those that failed. Imports no torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from anofpdm.errors import ConfigError, OutputError
from anofpdm.report.summary import Summary
from anofpdm.segment import outputs
from anofpdm.util.files import encode_csv, folder_lock, read_regular_file, write_atomically

Item = TypeVar("Item")
PARTS, TABLE = "parts", "scans.csv"
COUNTS = ("volume_ml", "findings", "slices", "slices_detected", "estimated_dice")
COLUMNS = ("scan", *COUNTS, "missing_modalities", "warnings", "engine", "model_sha256", "folder")


@dataclass(frozen=True)
class Part:
    """Part `number` of `count`, from 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ConfigError(f"--part {self}: parts are numbered from 1 to {self.count}")

    @classmethod
    def parse(cls, text: str) -> "Part":
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match:
            raise ConfigError(f"--part {text}: write it as number/count, e.g. 3/10")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def file(self) -> str:
        return f"{self.number}-of-{self.count}.json"

    def select(self, items: Sequence[Item]) -> list[Item]:
        """Every item is in exactly one part."""
        return list(items[self.number - 1 :: self.count])


@dataclass
class JoinedResults:
    rows: list[dict[str, Any]]
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    missing: list[str] = field(default_factory=list)  # parts without a record, and scans without a result


def write_part(out: Path, part: Part, scans: Sequence[str], failed: Mapping[str, str]) -> None:
    folder = out / PARTS
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / part.file, json.dumps({"scans": list(scans), "failed": dict(failed)}, indent=2).encode())


def join_results(out: Path) -> JoinedResults:
    """Write a table of all results in the folder, and check that every part is complete."""
    joined = JoinedResults(result_rows(out))
    if not joined.rows and not (out / PARTS).is_dir():
        raise OutputError(f"{out}: no results of `anofpdm segment` in it; check the path")
    _check_parts(out, joined)
    with folder_lock(out):
        cells = (["" if row[name] is None else row[name] for name in COLUMNS] for row in joined.rows)
        write_atomically(out / TABLE, encode_csv(COLUMNS, cells))
    return joined


def result_rows(out: Path) -> list[dict[str, Any]]:
    """Of all results in the folder: columns of the table, by names of scans."""
    rows = []
    for path in [*out.glob(f"*/{outputs.SUMMARY}"), *out.glob(f"sub-*/**/*{outputs.BIDS_SUMMARY}")]:
        if files := outputs.ResultFiles.of_summary(path):
            folder = files.folder.relative_to(out).as_posix()
            rows.append({"scan": files.scan, **_read_summary(path), "folder": folder})
    return sorted(rows, key=lambda row: str(row["scan"]))


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = Summary.read(path)
    except (OSError, ValueError) as problem:
        raise OutputError(f"{path}: damaged ({problem}); remove it and segment the scan again") from None
    return {
        **{name: getattr(summary, name) for name in COUNTS},
        "missing_modalities": " ".join(summary.missing_modalities),
        "warnings": len(summary.warnings),
        **{name: summary.settings.get(name) for name in ("engine", "model_sha256")},
    }


def _check_parts(out: Path, joined: JoinedResults) -> None:
    """Add what failed and what is missing. Without array jobs, nothing."""
    counts = {int(path.stem.split("-of-")[1]) for path in (out / PARTS).glob("*-of-*.json")}
    if len(counts) > 1:
        listed = " and ".join(map(str, sorted(counts)))
        raise OutputError(f"{out / PARTS}: of jobs with {listed} parts; remove the records of the older ones")
    scans: list[str] = []
    for part in (Part(number, count) for count in counts for number in range(1, count + 1)):
        path = out / PARTS / part.file
        if path.is_file():
            record = json.loads(read_regular_file(path))
            scans += record["scans"]
            joined.failed |= record["failed"]
        else:
            joined.missing.append(f"part {part}")
    with_result = {row["scan"] for row in joined.rows}
    joined.missing += [f"result of {scan}" for scan in scans if scan not in with_result | joined.failed.keys()]
