"""The door for uploads: whether there is room, what comes in, a first look at it, and a place in the queue."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request

from anofpdm.errors import AnoFPDMError
from anofpdm.scans.grid import Grid, check_same_grid
from anofpdm.viewer.dicom import on_a_page, series_given
from anofpdm.viewer.jobs import INPUT, Job, JobStore
from anofpdm.viewer.limits import MIB, Limits
from anofpdm.viewer.looks import GZIP, ZIP, first_bytes, look_at_nifti, look_at_zip
from anofpdm.viewer.refusals import RefusalError
from anofpdm.viewer.uploads import SERIES, Received, Receiver, check_declared, receive
from anofpdm.viewer.worker import DICOM

FULL_SECONDS = 30  # when to come back
DRAINED_BYTES, DRAINED_SECONDS = 16 * MIB, 1.0


class Intake:
    def __init__(self, store: JobStore, modalities: tuple[str, ...], limits: Limits, *, dicom: bool):
        self.modalities, self.dicom = modalities, dicom
        self._store, self._limits = store, limits
        self._uploads = 0  # under way; counted in the event loop alone
        self._looking = threading.Lock()  # a table of contents takes memory: one at a time

    async def take(self, request: Request) -> Job:
        try:
            with self._room():
                return await self._taken(request)
        except RefusalError:
            await _drain(request)
            raise

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """A place in the queue, held from the first byte: who is let in is not turned away at the end."""
        limits = self._limits
        if len(self._store.queued()) + self._uploads >= limits.waiting:
            said = f"{limits.waiting} scans are waiting, as many as this server takes; try again later."
            raise RefusalError(503, said, retry_seconds=FULL_SECONDS)
        if self._uploads >= limits.uploads:
            said = f"{limits.uploads} uploads are under way, as many as this server takes; try again soon."
            raise RefusalError(503, said, retry_seconds=FULL_SECONDS)
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    async def _taken(self, request: Request) -> Job:
        headers, limits = request.headers, self._limits
        boundary = check_declared(
            headers.get("content-type", ""), headers.get("content-length"), self._store.folder, limits
        )
        allowed = (*self.modalities, *([DICOM] if self.dicom else []))
        with self._store.incoming() as place:
            receiver = Receiver(place / INPUT, allowed, boundary, limits)
            received = await receive(request.stream(), receiver, limits)
            return await asyncio.to_thread(self._accepted, place, received)

    def _accepted(self, place: Path, received: Received) -> Job:
        with self._looking:
            dicom = DICOM in received.files
            names = self._look_at_dicom(received) if dicom else self._look_at_files(received.files)
        for part, name in names.items():
            path = received.files[part]
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.rename(path.with_name(name))
        return self._store.accept(place, names, received.series)

    def _look_at_dicom(self, received: Received) -> dict[str, str]:
        if len(received.files) > 1:
            raise RefusalError(422, "Give a zip of DICOM files or a file for each modality, not both.", DICOM)
        with _about(DICOM):
            look_at_zip(received.files[DICOM], Path("The zip"), self._limits)
        with _about(SERIES):
            series_given(received.series)
        return {DICOM: "scan.zip"}

    def _look_at_files(self, files: dict[str, Path]) -> dict[str, str]:
        missing = [name for name in self.modalities if name not in files]
        if missing:
            needs = ", ".join(self.modalities)
            raise RefusalError(422, f"No {missing[0]} is given; the model needs {needs} of every scan.", missing[0])
        names: dict[str, str] = {}
        first: tuple[Grid, Path] | None = None
        for modality in self.modalities:
            start = first_bytes(files[modality])
            if start.startswith(ZIP):
                raise RefusalError(422, f"{modality} is a zip; a zip of DICOM files has a place of its own.", modality)
            names[modality] = f"{modality}.nii.gz" if start.startswith(GZIP) else f"{modality}.nii"
            called = Path(names[modality])
            with _about(modality):
                grid = look_at_nifti(files[modality], called, self._limits)
                first = first or (grid, called)
                check_same_grid(*first, grid, called)
        return names


@contextlib.contextmanager
def _about(field: str) -> Iterator[None]:
    """What is wrong with a part of the form, said beside it."""
    try:
        yield
    except RefusalError:
        raise
    except AnoFPDMError as problem:
        raise RefusalError(422, on_a_page(str(problem)), field) from None


async def _drain(request: Request) -> None:
    """Listen a little longer: a client that is cut off while it speaks may never hear the answer."""
    if request.headers.get("expect"):
        return  # it waits for us
    taken = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect, RuntimeError):
        async with asyncio.timeout(DRAINED_SECONDS):
            async for piece in request.stream():
                taken += len(piece)
                if taken > DRAINED_BYTES:
                    return


def form_schema(modalities: tuple[str, ...], dicom: bool) -> dict[str, Any]:
    """The form, for the API's page: it is read piece by piece, which FastAPI cannot know."""
    binary = {"type": "string", "format": "binary"}
    parts = {name: {**binary, "description": f"NIfTI file of the {name}"} for name in modalities}
    if dicom:
        parts[DICOM] = {**binary, "description": "instead: a zip of the DICOM files of one study"}
        parts[SERIES] = {"type": "string", "description": "which DICOM series is which, as flair=3, t2=7"}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {
        "type": "object", "properties": parts,
    }}}}}  # fmt: skip
