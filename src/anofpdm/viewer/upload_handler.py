"""Handles uploads: checks the limits, receives the files, checks them and queues the scan."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from anofpdm.errors import AnoFPDMError
from anofpdm.raw.series_header import check_header
from anofpdm.raw.stripped import on_one_grid
from anofpdm.scans.grid import Grid, check_same_grid
from anofpdm.scans.modalities import InputModalities
from anofpdm.viewer.jobs import INPUT, Job, JobState, JobStore
from anofpdm.viewer.limits import MIB, Limits, RequestError
from anofpdm.viewer.multipart import SERIES, FormReceiver, check_request_headers
from anofpdm.viewer.upload_check import GZIP, ZIP, adapt_to_web, check_nifti, check_zip, parse_series_text
from anofpdm.viewer.worker import DICOM

DRAIN_BYTES, DRAIN_SECONDS = 16 * MIB, 1.0


class UploadHandler:
    def __init__(self, store: JobStore, inputs: InputModalities, limits: Limits, *, dicom: bool, raw: bool = False):
        self.inputs, self.dicom, self.raw = inputs, dicom, raw  # raw: series on different grids are accepted
        self._store, self._limits = store, limits
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
        headers, limits, store = request.headers, self._limits, self._store
        kind, length = headers.get("content-type", ""), headers.get("content-length")
        boundary = check_request_headers(kind, length, store.folder, limits)
        fields = (*self.inputs.names, *([DICOM] if self.dicom else []))
        with store.incoming() as folder:
            files, series = await FormReceiver(folder / INPUT, fields, boundary, limits).receive(request.stream())
            return await asyncio.to_thread(self._accept, folder, files, series)

    def _accept(self, folder: Path, files: dict[str, Path], series: str) -> Job:
        with self._check_lock:
            names = self._check_dicom(files, series) if DICOM in files else self._check_files(files)
        for field, name in names.items():
            path = files[field]
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.rename(path.with_name(name))
        return self._store.accept(folder, names, series)

    def _check_dicom(self, files: dict[str, Path], series: str) -> dict[str, str]:
        """Returns the file name for each field."""
        if len(files) > 1:
            raise RequestError(422, "Give either a zip of DICOM files or one file per modality, not both.", DICOM)
        with _errors_for(DICOM):
            check_zip(files[DICOM], Path("The zip"), self._limits)
        with _errors_for(SERIES):
            parse_series_text(series)
        return {DICOM: "scan.zip"}

    def _check_files(self, files: dict[str, Path]) -> dict[str, str]:
        """Returns the file name for each modality."""
        if missing := self.inputs.missing_needed(files):
            needs = ", ".join(self.inputs.needed) + self.inputs.explain()
            raise RequestError(422, f"The {missing[0]} file is missing; the model needs {needs}.", missing[0])
        names: dict[str, str] = {}
        first: tuple[Grid, Path] | None = None
        for modality in self.inputs.select(files):
            with files[modality].open("rb") as file:
                magic = file.read(4)
            if magic.startswith(ZIP):
                message = f"{modality} is a zip; upload a zip of DICOM files in the field for DICOM."
                raise RequestError(422, message, modality)
            names[modality] = f"{modality}.nii.gz" if magic.startswith(GZIP) else f"{modality}.nii"
            name = Path(names[modality])
            with _errors_for(modality):
                grid = check_nifti(files[modality], name, self._limits)
                first = first or (grid, name)
                if not self.raw:
                    check_same_grid(*first, grid, name)
                elif not on_one_grid([first[0], grid]):
                    check_header(grid, name)
        return names


@contextlib.contextmanager
def _errors_for(field: str) -> Iterator[None]:
    """Translate errors into responses that name the form field."""
    try:
        yield
    except AnoFPDMError as error:
        raise RequestError(422, adapt_to_web(str(error)), field) from None


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


def form_schema(inputs: InputModalities, dicom: bool) -> dict[str, Any]:
    """OpenAPI description of the form, which FastAPI cannot derive because the body is streamed."""
    texts = {name: f"NIfTI file of the {name} image." for name in inputs.needed}
    texts |= {name: f"NIfTI file of the {name} image; optional." for name in inputs.optional}
    if dicom:
        texts[DICOM] = "Zip of the DICOM files of one study, instead of NIfTI files."
        texts[SERIES] = "Which DICOM series is which modality: flair=3, t2=7."
    parts = {name: {"type": "string", "format": "binary", "description": text} for name, text in texts.items()}
    form = {"schema": {"type": "object", "properties": parts}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form}}}
