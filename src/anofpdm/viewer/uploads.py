"""Uploads: received within the limits, checked, named and queued.

The checks read headers and declared sizes only, with little memory, without unpacking. Errors that show only when all
data are read (truncated or corrupt files) are found by the worker.
"""

import asyncio
import contextlib
import math
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from anofpdm.errors import AnoFPDMError, ScanError
from anofpdm.scans.grid import Grid, check_same_grid, on_one_grid
from anofpdm.scans.nifti import read_grid
from anofpdm.scans.plausible import check_header
from anofpdm.util.text import remove_folders
from anofpdm.viewer.jobs import INPUT, Job, JobState, JobStore
from anofpdm.viewer.limits import MIB, Limits, RequestError
from anofpdm.viewer.multipart import SERIES, receive_form
from anofpdm.viewer.worker import DICOM, Ready, adapt_to_web, parse_series_text

DRAIN_BYTES, DRAIN_SECONDS = 16 * MIB, 1.0
GZIP, ZIP = b"\x1f\x8b", b"PK"


class UploadHandler:
    def __init__(self, store: JobStore, model: Ready, limits: Limits):
        self._store, self._model, self._limits = store, model, limits
        self._uploads = 0  # in progress; changed only in the event loop
        self._check_lock = threading.Lock()  # one check at a time: a zip's directory takes memory

    async def handle(self, request: Request) -> Job:
        try:
            self._check_room()
            self._uploads += 1
            try:
                return await self._receive(request)
            finally:
                self._uploads -= 1
        except ClientDisconnect:
            raise RequestError(400, "The connection ended before the upload was complete.") from None
        except RequestError:
            await _drain(request)
            raise

    def _check_room(self) -> None:
        """An upload holds a place in the queue from its first byte, so that a complete one is never refused."""
        limits = self._limits
        if len(self._store.all(JobState.QUEUED)) + self._uploads >= limits.waiting:
            raise RequestError(503, f"The queue is full: {limits.waiting} scans are waiting; try again later.")
        if self._uploads >= limits.uploads:
            message = f"{limits.uploads} uploads are in progress, the most this server accepts; try again later."
            raise RequestError(503, message)

    async def _receive(self, request: Request) -> Job:
        fields = (*self._model.inputs.names, *([DICOM] if self._model.dicom else []))
        with self._store.incoming() as folder:
            received = await receive_form(request.headers, request.stream(), folder / INPUT, fields, self._limits)
            return await asyncio.to_thread(self._accept, folder, *received)

    def _accept(self, folder: Path, files: dict[str, Path], series: str) -> Job:
        with self._check_lock:
            if DICOM in files:
                files = check_dicom(files, series, self._limits)
            else:
                files = check_images(files, self._model, self._limits)
        for path in files.values():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return self._store.accept(folder, {field: path.name for field, path in files.items()}, series)


async def _drain(request: Request) -> None:
    """Read on for a moment: clients that are disconnected while sending may not read the response."""
    if request.headers.get("expect"):
        return  # the client waits for the response before it sends
    received = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for chunk in request.stream():
                received += len(chunk)
                if received > DRAIN_BYTES:
                    return


def form_schema(model: Ready) -> dict[str, Any]:
    """OpenAPI description of the form, which FastAPI cannot derive because the body is streamed."""
    optional = dict.fromkeys(model.inputs.optional, "; optional")
    texts = {name: f"NIfTI file of the {name} image{optional.get(name, '')}." for name in model.inputs.names}
    if model.dicom:
        texts[DICOM] = "Zip of the DICOM files of one study, instead of NIfTI files."
        texts[SERIES] = "Which DICOM series is which modality: flair=3, t2=7."
    parts = {name: {"type": "string", "format": "binary", "description": text} for name, text in texts.items()}
    form = {"schema": {"type": "object", "properties": parts}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form}}}


# ---- checks ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _errors_for(field: str, *paths: Path) -> Iterator[None]:
    """Translate errors into responses that name the form field, and the files without their folder."""
    try:
        yield
    except AnoFPDMError as error:
        message = remove_folders(str(error), map(str, paths))
        raise RequestError(422, adapt_to_web(message), field) from None


def check_images(files: dict[str, Path], model: Ready, limits: Limits) -> dict[str, Path]:
    """Returns the renamed file of each modality."""
    inputs = model.inputs
    if missing := inputs.missing_needed(files):
        needs = ", ".join(inputs.needed) + inputs.explain()
        raise RequestError(422, f"The {missing[0]} file is missing; the model needs {needs}.", missing[0])
    named: dict[str, Path] = {}
    grids: list[Grid] = []
    for modality in inputs.select(files):
        path = named[modality] = _name_image(files[modality], modality)
        with _errors_for(modality, *named.values()):
            grids.append(_read_grid(path, limits))
            if not model.raw:
                check_same_grid(grids[0], next(iter(named.values())), grids[-1], path)
            elif not on_one_grid([grids[0], grids[-1]]):
                check_header(grids[-1], path)
    return named


def _name_image(path: Path, modality: str) -> Path:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic.startswith(ZIP):
        raise RequestError(422, f"{modality} is a zip; upload a zip of DICOM files in the field for DICOM.", modality)
    return path.rename(path.with_name(f"{modality}.nii.gz" if magic.startswith(GZIP) else f"{modality}.nii"))


def _read_grid(path: Path, limits: Limits) -> Grid:
    """Of a NIfTI file, from its header."""
    grid = read_grid(path)
    if math.prod(grid.shape) > limits.voxels:
        shape = " x ".join(map(str, grid.shape))
        raise ScanError(f"{path}: {shape} voxels are more than this server accepts ({limits.voxels:,}); resample it")
    return grid


def check_dicom(files: dict[str, Path], series: str, limits: Limits) -> dict[str, Path]:
    """Returns the renamed file."""
    if len(files) > 1:
        raise RequestError(422, "Give either a zip of DICOM files or one file per modality, not both.", DICOM)
    path = files[DICOM].rename(files[DICOM].with_name("scan.zip"))
    with _errors_for(DICOM, path):
        check_zip(path, limits)
    with _errors_for(SERIES):
        parse_series_text(series)
    return {DICOM: path}


def check_zip(path: Path, limits: Limits) -> None:
    """Check that the central directory of a zip is readable and the declared sizes are within the limits."""
    unreadable = ScanError(f"{path}: not a zip, or truncated; zip the folder of the study and try again")
    with path.open("rb") as file:
        end_record = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # reads no more than this record
    if end_record is None:
        raise unreadable
    size = end_record[zipfile._ECD_SIZE]  # type: ignore[attr-defined]
    if size > limits.zip_directory_bytes:  # zipfile reads it into memory
        raise ScanError(f"{path}: its central directory has {size >> 20:,} MiB; zip only one study")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        raise unreadable from None
    if unpacked > limits.unpacked_bytes:
        limit = f"the {limits.unpacked_bytes >> 20:,} MiB that this server accepts"
        raise ScanError(f"{path}: unpacks to {unpacked >> 20:,} MiB, more than {limit}; zip only one study")
