"""A first look at an upload, before it waits in the queue: by its first bytes, in little memory, without unpacking it.

What can only be seen by reading all of it (a file cut short, damaged data) is found by the worker.
"""

import math
import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from anofpdm.errors import ScanError
from anofpdm.scans.grid import Grid, check_same_grid
from anofpdm.scans.nifti import read_grid
from anofpdm.viewer.limits import Limits

GZIP, ZIP = b"\x1f\x8b", b"PK"
END, END_BYTES = b"PK\x05\x06", 22  # the last record of a zip
LOCATOR, LOCATOR_BYTES = b"PK\x06\x07", 20  # before it, in a zip of the long kind
LONG_END, LONG_END_BYTES = b"PK\x06\x06", 56
COMMENT_BYTES = 65_535  # may follow the last record


def first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4)


def look_at_scans(files: dict[str, Path], limits: Limits) -> None:
    """Each header, and that all are on one grid. The names in what is said are those of `files`."""
    grids = {name: look_at_nifti(path, Path(path.name), limits) for name, path in files.items()}
    names = list(grids)
    for other in names[1:]:
        check_same_grid(grids[names[0]], Path(files[names[0]].name), grids[other], Path(files[other].name))


def look_at_nifti(path: Path, called: Path, limits: Limits) -> Grid:
    grid = read_grid(path, called)
    if math.prod(grid.shape) > limits.voxels:
        said = " x ".join(map(str, grid.shape))
        raise ScanError(f"{called}: {said} voxels are more than this server takes ({limits.voxels:,}); resample it")
    return grid


# ---- zips ------------------------------------------------------------------------------------------------------------


def look_at_zip(path: Path, called: Path, limits: Limits) -> None:
    """That its table of contents can be read without harm, and what it declares is not too much."""
    with path.open("rb") as file:
        size = _contents_bytes(file)
    if size is None:
        raise ScanError(f"{called}: not a zip, or cut short; zip the folder of the study and try again")
    if size > limits.zip_contents_bytes:  # Python's reader takes all of it into memory
        raise ScanError(f"{called}: its table of contents alone has {size >> 20:,} MiB; zip one study")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(one.file_size for one in archive.infolist())
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        raise ScanError(f"{called}: not a zip, or cut short; zip the folder of the study and try again") from None
    if unpacked > limits.unpacked_bytes:
        most = limits.unpacked_bytes >> 20
        raise ScanError(f"{called}: unpacks to {unpacked >> 20:,} MiB, and this server takes {most:,}; zip one study")


def _contents_bytes(file: BinaryIO) -> int | None:
    """How long the table of contents says it is, found as Python's reader finds it; none where there is no table."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - LONG_END_BYTES - LOCATOR_BYTES - END_BYTES - COMMENT_BYTES))
    tail = file.read()
    at = tail.rfind(END)
    if at < 0 or len(tail) - at < END_BYTES:
        return None
    (size,) = struct.unpack_from("<L", tail, at + 12)
    locator, record = at - LOCATOR_BYTES, at - LOCATOR_BYTES - LONG_END_BYTES
    if record >= 0 and tail.startswith(LOCATOR, locator) and tail.startswith(LONG_END, record):
        (size,) = struct.unpack_from("<Q", tail, record + 40)
    return int(size)
