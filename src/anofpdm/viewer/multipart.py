"""Streams an upload to disk. Memory holds only a chunk of it, and file names chosen by the client are ignored.

An upload is a multipart form with one part per modality, or one part `dicom` with a zip, and the text `series`.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from anofpdm.viewer.limits import MIB, Limits, RequestError

WRITE_BYTES = MIB  # written to disk at a time
TEXT_BYTES = 2000  # limit of a text field
SERIES = "series"  # text field: which DICOM series is which modality
INVALID_FORM = "The upload is not a complete multipart/form-data request."
EVENTS = (
    "part_begin", "header_field", "header_value", "header_end", "headers_finished", "part_data", "part_end", "end",
)  # fmt: skip


def check_request_headers(content_type: str, content_length: str | None, folder: Path, limits: Limits) -> bytes:
    """Reject a request by its headers, before its body is read; returns the multipart boundary."""
    media_type, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary", b"")
    if media_type != b"multipart/form-data" or not boundary:
        raise RequestError(415, INVALID_FORM)
    size = int(content_length) if content_length and content_length.isdecimal() else 0
    _check_size(size, limits)
    if shutil.disk_usage(folder).free < limits.free_bytes + size:
        raise RequestError(507, "The disk of the server is full; delete results, or contact its administrator.")
    return boundary


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.upload_bytes:
        limit = limits.upload_bytes >> 20
        raise RequestError(413, f"The upload is larger than the {limit:,} MiB that this server accepts.")


class FormReceiver:
    """Writes the parts of a form to files `part-0`, `part-1`, ... in a folder."""

    def __init__(self, folder: Path, allowed: tuple[str, ...], boundary: bytes, limits: Limits):
        self._folder, self._allowed, self._limits = folder, allowed, limits
        self._files: dict[str, Path] = {}  # by field
        self._complete, self._size, self._buffer = False, 0, bytearray()
        self._header = self._value = self._disposition = b""
        self._file: BinaryIO | None = None  # of the current part
        callbacks = {f"on_{event}": getattr(self, f"_on_{event}") for event in EVENTS}
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError:
            raise RequestError(415, INVALID_FORM) from None

    async def receive(self, stream: AsyncIterator[bytes]) -> tuple[dict[str, Path], str]:
        """Receive until the form is complete, within the time limits. Returns its files by field, and SERIES."""
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                while (chunk := await self._next_chunk(stream)) is not None:
                    self._size += len(chunk)
                    _check_size(self._size, self._limits)
                    self._parser.write(chunk)
                    if len(self._buffer) >= WRITE_BYTES:
                        await asyncio.to_thread(self._flush)
        except FormParserError:
            raise RequestError(400, INVALID_FORM) from None
        except TimeoutError:
            raise RequestError(408, "The upload timed out; try again with a faster connection.") from None
        finally:
            self._close()
        if not self._complete:
            raise RequestError(400, INVALID_FORM)
        return self._files, self._take_series()

    async def _next_chunk(self, stream: AsyncIterator[bytes]) -> bytes | None:
        async with asyncio.timeout(self._limits.idle_seconds):
            return await anext(stream, None)

    def _take_series(self) -> str:
        path = self._files.pop(SERIES, None)
        if path is None:
            return ""
        if path.stat().st_size > TEXT_BYTES:
            raise RequestError(413, f"The text of {SERIES} is too long.", SERIES)
        text = path.read_text("utf-8", "replace")
        path.unlink()
        return " ".join(text.split())

    def _flush(self) -> None:
        if self._file is not None:
            self._file.write(self._buffer)
        self._buffer.clear()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- parser callbacks --------------------------------------------------------------------------------------------

    def _on_part_begin(self) -> None:
        self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        field = options.get(b"name", b"").decode("ascii", "replace")
        if field not in (*self._allowed, SERIES):
            raise RequestError(400, f"Unknown form field; the fields are {', '.join(self._allowed)}.")
        if field in self._files:
            raise RequestError(400, f"There are two files for {field}; give one.", field)
        path = self._files[field] = self._folder / f"part-{len(self._files)}"
        self._file = path.open("xb")

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._buffer += data[start:end]

    def _on_part_end(self) -> None:
        self._flush()
        self._close()

    def _on_end(self) -> None:
        self._complete = True
