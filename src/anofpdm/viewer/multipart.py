"""Streams an upload to disk. Memory holds only a chunk of it, and file names chosen by the client are ignored.

An upload is a multipart form with one part per modality, or one part `dicom` with a zip, and the text `series`.
"""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from anofpdm.viewer.limits import Limits, RequestError

TEXT_BYTES = 2000  # limit of a text field
SERIES = "series"  # text field: which DICOM series is which modality
INVALID_FORM = "The upload is not a complete multipart/form-data request."


async def receive_form(
    headers: Headers, stream: AsyncGenerator[bytes, None], folder: Path, fields: tuple[str, ...], limits: Limits
) -> tuple[dict[str, Path], str]:
    """Receive until the form is complete, within the limits. Returns its files by field, and SERIES."""
    _check_headers(headers, folder, limits)
    parser = FileParser(headers, _within_limits(stream, limits), folder, fields)
    try:
        async with asyncio.timeout(limits.upload_seconds):
            form = await parser.parse()
            await form.close()
    except (MultiPartException, FormParserError):
        raise RequestError(400, INVALID_FORM) from None
    except TimeoutError:
        raise RequestError(408, "The upload timed out; try again with a faster connection.") from None
    if not parser.complete:
        raise RequestError(400, INVALID_FORM)
    series = parser.files.pop(SERIES, None)
    return parser.files, _take_text(series) if series else ""


def _check_headers(headers: Headers, folder: Path, limits: Limits) -> None:
    """Reject a request by its headers, before its body is read."""
    if not headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise RequestError(415, INVALID_FORM)
    length = headers.get("content-length", "")
    size = int(length) if length.isdecimal() else 0
    _check_size(size, limits)
    if shutil.disk_usage(folder).free < limits.free_bytes + size:
        raise RequestError(507, "The disk of the server is full; delete results, or contact its administrator.")


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.upload_bytes:
        limit = limits.upload_bytes >> 20
        raise RequestError(413, f"The upload is larger than the {limit:,} MiB that this server accepts.")


async def _within_limits(stream: AsyncGenerator[bytes, None], limits: Limits) -> AsyncGenerator[bytes, None]:
    size = 0
    while True:
        async with asyncio.timeout(limits.idle_seconds):
            chunk = await anext(stream, None)
        if chunk is None:
            return
        size += len(chunk)
        _check_size(size, limits)
        yield chunk


def _take_text(path: Path) -> str:
    if path.stat().st_size > TEXT_BYTES:
        raise RequestError(413, f"The text of {SERIES} is too long.", SERIES)
    text = path.read_text("utf-8", "replace")
    path.unlink()
    return " ".join(text.split())


class FileParser(MultiPartParser):
    """Starlette's parser, which writes every part to a file of its own: `part-0`, `part-1`, ... in a folder."""

    def __init__(
        self, headers: Headers, stream: AsyncGenerator[bytes, None], folder: Path, allowed: tuple[str, ...]
    ) -> None:
        super().__init__(headers, stream)
        self.files: dict[str, Path] = {}  # by field
        self.complete = False
        self._folder, self._allowed = folder, allowed

    def on_headers_finished(self) -> None:
        part = self._current_part
        _, options = parse_options_header(part.content_disposition)
        part.field_name = field = options.get(b"name", b"").decode("ascii", "replace")
        if field not in (*self._allowed, SERIES):
            raise RequestError(400, f"Unknown form field; the fields are {', '.join(self._allowed)}.")
        if field in self.files:
            raise RequestError(400, f"There are two files for {field}; give one.", field)
        path = self.files[field] = self._folder / f"part-{len(self.files)}"
        file = path.open("xb")
        self._files_to_close_on_error.append(file)  # type: ignore[arg-type]
        part.file = UploadFile(file)

    def on_end(self) -> None:
        self.complete = True
