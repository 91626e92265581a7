"""Checks of an upload before it is queued: headers and declared sizes only, with little memory, without unpacking.

Errors that show only when all data are read (truncated or corrupt files) are found by the worker.
"""

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

from anofpdm.errors import AnoFPDMError, ScanError
from anofpdm.scans.grid import Grid, check_same_grid, on_one_grid
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import read_grid
from anofpdm.scans.plausible import check_header
from anofpdm.viewer.limits import Limits, RequestError
from anofpdm.viewer.multipart import SERIES
from anofpdm.viewer.worker import DICOM, adapt_to_web, parse_series_text

GZIP, ZIP = b"\x1f\x8b", b"PK"


@contextlib.contextmanager
def _errors_for(field: str) -> Iterator[None]:
    """Translate errors into responses that name the form field."""
    try:
        yield
    except AnoFPDMError as error:
        raise RequestError(422, adapt_to_web(str(error)), field) from None


def check_images(files: dict[str, Path], inputs: InputModalities, limits: Limits, *, raw: bool) -> dict[str, str]:
    """Returns the file name for each modality. Unless `raw`, all images must be on the same grid."""
    if missing := inputs.missing_needed(files):
        needs = ", ".join(inputs.needed) + inputs.explain()
        raise RequestError(422, f"The {missing[0]} file is missing; the model needs {needs}.", missing[0])
    names: dict[str, str] = {}
    first: tuple[Grid, Path] | None = None
    for modality in inputs.select(files):
        with files[modality].open("rb") as file:
            magic = file.read(4)
        if magic.startswith(ZIP):
            message = f"{modality} is a zip; upload a zip of DICOM files in the field for DICOM."
            raise RequestError(422, message, modality)
        names[modality] = f"{modality}.nii.gz" if magic.startswith(GZIP) else f"{modality}.nii"
        name = Path(names[modality])
        with _errors_for(modality):
            grid = _read_grid(files[modality], name, limits)
            first = first or (grid, name)
            if not raw:
                check_same_grid(*first, grid, name)
            elif not on_one_grid([first[0], grid]):
                check_header(grid, name)
    return names


def _read_grid(path: Path, name: Path, limits: Limits) -> Grid:
    """Of a NIfTI file, from its header; `name` is used in error messages."""
    grid = read_grid(path, name)
    if math.prod(grid.shape) > limits.voxels:
        shape = " x ".join(map(str, grid.shape))
        raise ScanError(f"{name}: {shape} voxels are more than this server accepts ({limits.voxels:,}); resample it")
    return grid


def check_dicom(files: dict[str, Path], series: str, limits: Limits) -> dict[str, str]:
    """Returns the file name for each field."""
    if len(files) > 1:
        raise RequestError(422, "Give either a zip of DICOM files or one file per modality, not both.", DICOM)
    with _errors_for(DICOM):
        check_zip(files[DICOM], Path("The zip"), limits)
    with _errors_for(SERIES):
        parse_series_text(series)
    return {DICOM: "scan.zip"}


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
