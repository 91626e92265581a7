"""Handles uploads: checks the limits, receives the files, checks them and queues the scan."""

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from anofpdm.scans.modalities import InputModalities
from anofpdm.viewer.jobs import INPUT, Job, JobState, JobStore
from anofpdm.viewer.limits import MIB, Limits, RequestError
from anofpdm.viewer.multipart import SERIES, receive_form
from anofpdm.viewer.upload_check import check_dicom, check_images
from anofpdm.viewer.worker import DICOM

DRAIN_BYTES, DRAIN_SECONDS = 16 * MIB, 1.0


class UploadHandler:
    def __init__(self, store: JobStore, inputs: InputModalities, limits: Limits, *, dicom: bool, raw: bool):
        self.inputs, self.dicom, self._raw = inputs, dicom, raw  # raw: series on different grids are accepted
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
        fields = (*self.inputs.names, *([DICOM] if self.dicom else []))
        with self._store.incoming() as folder:
            received = await receive_form(request.headers, request.stream(), folder / INPUT, fields, self._limits)
            return await asyncio.to_thread(self._accept, folder, *received)

    def _accept(self, folder: Path, files: dict[str, Path], series: str) -> Job:
        with self._check_lock:
            if DICOM in files:
                names = check_dicom(files, series, self._limits)
            else:
                names = check_images(files, self.inputs, self._limits, raw=self._raw)
        for field, name in names.items():
            path = files[field]
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.rename(path.with_name(name))
        return self._store.accept(folder, names, series)


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
