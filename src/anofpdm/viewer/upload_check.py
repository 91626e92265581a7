"""Checks of an upload before it is queued: headers and declared sizes only, with little memory, without unpacking.

Errors that show only when all data are read (truncated or corrupt files) are found by the worker.
"""

import math
import re
import zipfile
from pathlib import Path

from anofpdm.errors import ScanError
from anofpdm.scans.grid import Grid
from anofpdm.scans.nifti import read_grid
from anofpdm.viewer.limits import Limits

GZIP, ZIP = b"\x1f\x8b", b"PK"
SERIES_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+(?=\w+\s*=)")  # flair=3 t2=Axial T2; descriptions may contain spaces


def check_nifti(path: Path, name: Path, limits: Limits) -> Grid:
    """Grid of a NIfTI file, from its header; `name` is used in error messages."""
    grid = read_grid(path, name)
    if math.prod(grid.shape) > limits.voxels:
        shape = " x ".join(map(str, grid.shape))
        raise ScanError(f"{name}: {shape} voxels are more than this server accepts ({limits.voxels:,}); resample it")
    return grid


# ---- DICOM -----------------------------------------------------------------------------------------------------------


def parse_series_text(text: str) -> dict[str, str]:
    """Modality to series, from text such as flair=3, t2=7."""
    from anofpdm.scans.dicom.match import parse_series

    return parse_series([word for word in SERIES_SEPARATOR.split(text.strip()) if word])


def adapt_to_web(message: str) -> str:
    """Replace mentions of command-line options, which have no place on a page."""
    return message.replace("--series ", "Series: ").replace(" (--preview shows all)", "")


def check_zip(path: Path, name: Path, limits: Limits) -> None:
    """Check that the central directory of a zip is readable and the declared sizes are within the limits."""
    unreadable = ScanError(f"{name}: not a zip, or truncated; zip the folder of the study and try again")
    with path.open("rb") as file:
        end_record = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # reads no more than this record
    if end_record is None:
        raise unreadable
    size = end_record[zipfile._ECD_SIZE]  # type: ignore[attr-defined]
    if size > limits.zip_directory_bytes:  # zipfile reads it into memory
        raise ScanError(f"{name}: its central directory has {size >> 20:,} MiB; zip only one study")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        raise unreadable from None
    if unpacked > limits.unpacked_bytes:
        limit = f"the {limits.unpacked_bytes >> 20:,} MiB that this server accepts"
        raise ScanError(f"{name}: unpacks to {unpacked >> 20:,} MiB, more than {limit}; zip only one study")
