"""Group level: a table with a row per scan, and a data dictionary of its columns."""

from pathlib import Path
from typing import Any

from anofpdm.errors import CohortError
from anofpdm.segment.join import result_rows
from anofpdm.util.artifacts import encode
from anofpdm.util.files import escape_cell, folder_lock, write_atomically

TABLE, DICTIONARY = "group_lesions.tsv", "group_lesions.json"
COLUMNS: dict[str, dict[str, Any]] = {
    "participant_id": {"Description": "Participant"},
    "session_id": {"Description": "Session; n/a without sessions"},
    "volume_ml": {"Description": "Volume of the lesion mask", "Units": "mL"},
    "findings": {"Description": "Number of connected components of the mask"},
    "slices": {"Description": "Number of axial slices that were examined"},
    "slices_detected": {"Description": "Number of axial slices called unhealthy"},
    "estimated_dice": {"Description": "Estimated DICE of the mask, without a manual mask; n/a if it has no estimate"},
    "missing_modalities": {"Description": "Optional modalities that the scan lacks; n/a if none"},
    "warnings": {"Description": "Number of warnings; their texts are in the summary of the scan"},
    "engine": {"Description": "What made the mask", "Levels": {"student": "One pass", "diffusion": "Noise levels"}},
    "model_sha256": {"Description": "Hash of the model; volumes are comparable only where it is the same"},
}


def write_group_table(out: Path) -> int:
    """Of all results in the folder; returns the number of scans."""
    rows = [row for row in result_rows(out) if row["scan"].startswith("sub-")]
    if not rows:
        raise CohortError(f"{out}: no results of participants; run `anofpdm bids BIDS_DIR {out} participant` first")
    for row in rows:
        row["participant_id"], _, row["session_id"] = row["scan"].partition("_")
    lines = ["\t".join(COLUMNS), *("\t".join(_cell(row[name]) for name in COLUMNS) for row in rows)]
    with folder_lock(out):
        write_atomically(out / TABLE, ("\n".join(lines) + "\n").encode())
        write_atomically(out / DICTIONARY, encode(COLUMNS))
    return len(rows)


def _cell(value: object) -> str:
    return "n/a" if value in (None, "") else str(escape_cell(value))
