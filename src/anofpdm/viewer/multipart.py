"""Streams an upload to disk. Memory holds only a chunk of it, and file names chosen by the client are ignored.

An upload is a multipart form with one part per modality, or one part `dicom` with a zip.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from anofpdm.viewer.errors import RequestError
from anofpdm.viewer.limits import MIB, Limits

WRITE_BYTES = MIB  # written to disk at a time
TEXT_BYTES = 2000  # limit of a text field
SERIES = "series"  # text field: which DICOM series is which modality
INVALID_FORM = "The upload is not a complete multipart/form-data request."


@dataclass
class Upload:
    files: dict[str, Path] = field(default_factory=dict)  # by field
    series: str = ""


def check_request_headers(content_type: str, content_length: str | None, folder: Path, limits: Limits) -> bytes:
    """Reject a request by its headers, before its body is read; returns the multipart boundary."""
    media_type, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary", b"")
    if media_type != b"multipart/form-data" or not boundary:
        raise RequestError(415, INVALID_FORM)
    size = int(content_length) if content_length and content_length.isdecimal() else 0
    if size > limits.upload_bytes:
        raise _too_large(limits)
    if shutil.disk_usage(folder).free < limits.free_bytes + size:
        raise RequestError(507, "The disk of the server is full; delete results, or contact its administrator.")
    return boundary


def _too_large(limits: Limits) -> RequestError:
    limit = limits.upload_bytes >> 20
    return RequestError(413, f"The upload is larger than the {limit:,} MiB that this server accepts.")


class FormReceiver:
    """Writes the parts of a form to files `part-0`, `part-1`, ... in a folder."""

    def __init__(self, folder: Path, allowed: tuple[str, ...], boundary: bytes, limits: Limits):
        self.upload, self.complete = Upload(), False
        self._folder, self._allowed, self._limits = folder, allowed, limits
        self._size = 0
        self._header, self._value = b"", b""
        self._disposition = b""
        self._field = ""  # of the current part
        self._file: BinaryIO | None = None  # of the current part; None for a text field
        self._text = b""
        self._buffer = bytearray()
        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # type: ignore[arg-type]
        except FormParserError:
            raise RequestError(415, INVALID_FORM) from None

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._limits.upload_bytes:
            raise _too_large(self._limits)
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise RequestError(400, INVALID_FORM) from None

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def flush(self) -> None:
        if self._file is not None:
            self._file.write(self._buffer)
        self._buffer.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- parser callbacks --------------------------------------------------------------------------------------------

    def _callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._on_part_begin,
            "on_header_field": lambda data, start, end: self._on_header_field(data[start:end]),
            "on_header_value": lambda data, start, end: self._on_header_value(data[start:end]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": lambda data, start, end: self._on_part_data(data[start:end]),
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def _on_part_begin(self) -> None:
        self._header = self._value = self._disposition = self._text = b""

    def _on_header_field(self, data: bytes) -> None:
        self._header += data

    def _on_header_value(self, data: bytes) -> None:
        self._value += data

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field = options.get(b"name", b"").decode("ascii", "replace")
        if self._field == SERIES:
            return
        if self._field not in self._allowed:
            raise RequestError(400, f"Unknown form field; the fields are {', '.join(self._allowed)}.")
        if self._field in self.upload.files:
            raise RequestError(400, f"There are two files for {self._field}; give one.", self._field)
        path = self._folder / f"part-{len(self.upload.files)}"
        self.upload.files[self._field] = path
        self._file = path.open("xb")

    def _on_part_data(self, data: bytes) -> None:
        if self._file is not None:
            self._buffer += data
            return
        self._text += data
        if len(self._text) > TEXT_BYTES:
            raise RequestError(413, f"The text of {SERIES} is too long.", SERIES)

    def _on_part_end(self) -> None:
        if self._file is None:
            self.upload.series = " ".join(self._text.decode("utf-8", "replace").split())
            return
        self.flush()
        self.close()

    def _on_end(self) -> None:
        self.complete = True


async def receive_upload(stream: AsyncIterator[bytes], receiver: FormReceiver, limits: Limits) -> Upload:
    """Receive until the form is complete, within the time limits."""
    try:
        async with asyncio.timeout(limits.upload_seconds):
            await _receive_chunks(stream, receiver, limits.idle_seconds)
    except TimeoutError:
        raise RequestError(408, "The upload timed out; try again with a faster connection.") from None
    finally:
        receiver.close()
    if not receiver.complete:
        raise RequestError(400, INVALID_FORM)
    return receiver.upload


async def _receive_chunks(stream: AsyncIterator[bytes], receiver: FormReceiver, idle_seconds: float) -> None:
    chunks = stream.__aiter__()
    while True:
        try:
            chunk = await _with_timeout(chunks.__anext__(), idle_seconds)
        except StopAsyncIteration:
            return
        receiver.feed(chunk)
        if receiver.buffered_bytes >= WRITE_BYTES:
            await asyncio.to_thread(receiver.flush)


async def _with_timeout(chunk: Awaitable[bytes], seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        return await chunk
