"""An upload, from the network to files of our own naming. At no time is more of it in memory than a piece.

It is a multipart form with a part for each modality, or one part `dicom` with a zip. What the client calls its files is
never looked at.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from anofpdm.viewer.limits import MIB, Limits
from anofpdm.viewer.refusals import RefusalError

PIECE = MIB  # to disk at a time
TEXT_BYTES = 2000  # of a part that is no file
SERIES = "series"  # which DICOM series is which
BROKEN_FORM = "The upload is not a form as browsers send it (multipart/form-data), or it ends too early."


@dataclass
class Received:
    files: dict[str, Path] = field(default_factory=dict)  # by name of the part
    series: str = ""


def check_declared(content_type: str, content_length: str | None, folder: Path, limits: Limits) -> bytes:
    """Refuse what need not be read at all; the boundary between parts of what may be."""
    kind, options = parse_options_header(content_type.encode("latin-1", "replace"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise RefusalError(415, BROKEN_FORM)
    size = int(content_length) if content_length and content_length.isdecimal() else 0
    if size > limits.upload_bytes:
        raise too_large(limits)
    if shutil.disk_usage(folder).free < limits.free_bytes + size:
        raise RefusalError(507, "The server's disk is full; delete results, or tell who runs it.")
    return boundary


def too_large(limits: Limits) -> RefusalError:
    return RefusalError(413, f"The upload is larger than the {limits.upload_bytes >> 20:,} MiB that this server takes.")


class Receiver:
    """Parts of a form become files `part-0`, `part-1`, ... in a folder."""

    def __init__(self, folder: Path, allowed: tuple[str, ...], boundary: bytes, limits: Limits):
        self.received, self.ended = Received(), False
        self._folder, self._allowed, self._limits = folder, allowed, limits
        self._size = 0
        self._header, self._value = b"", b""
        self._disposition = b""
        self._name = ""  # of the part that is being read
        self._file: BinaryIO | None = None  # where it goes; none: it is text
        self._text = b""
        self._waiting = bytearray()
        try:
            self._parser = MultipartParser(boundary, self._callbacks())  # type: ignore[arg-type]
        except FormParserError:
            raise RefusalError(415, BROKEN_FORM) from None

    def take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limits.upload_bytes:
            raise too_large(self._limits)
        try:
            self._parser.write(piece)
        except FormParserError:
            raise RefusalError(400, BROKEN_FORM) from None

    @property
    def due(self) -> bool:
        """Whether there is enough in memory to be worth a trip to the disk."""
        return len(self._waiting) >= PIECE

    def flush(self) -> None:
        if self._file is not None:
            self._file.write(self._waiting)
        self._waiting.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---- what the parser calls ---------------------------------------------------------------------------------------

    def _callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header_piece(data[start:end]),
            "on_header_value": lambda data, start, end: self._value_piece(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._open,
            "on_part_data": lambda data, start, end: self._data(data[start:end]),
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._header = self._value = self._disposition = self._text = b""

    def _header_piece(self, piece: bytes) -> None:
        self._header += piece

    def _value_piece(self, piece: bytes) -> None:
        self._value += piece

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("ascii", "replace")
        if self._name == SERIES:
            return
        if self._name not in self._allowed:
            raise RefusalError(
                400, f"The form has a part that is not known here; it may have {', '.join(self._allowed)}."
            )
        if self._name in self.received.files:
            raise RefusalError(400, f"There are two files for {self._name}; give one.", self._name)
        path = self._folder / f"part-{len(self.received.files)}"
        self.received.files[self._name] = path
        self._file = path.open("xb")

    def _data(self, piece: bytes) -> None:
        if self._file is not None:
            self._waiting += piece
            return
        self._text += piece
        if len(self._text) > TEXT_BYTES:
            raise RefusalError(413, f"The text of {SERIES} is too long.", SERIES)

    def _part_end(self) -> None:
        if self._file is None:
            self.received.series = " ".join(self._text.decode("utf-8", "replace").split())
            return
        self.flush()
        self.close()

    def _end(self) -> None:
        self.ended = True


async def receive(stream: AsyncIterator[bytes], receiver: Receiver, limits: Limits) -> Received:
    """Until the form ends. A client that falls silent is let go."""
    try:
        async with asyncio.timeout(limits.upload_seconds):
            await _all_pieces(stream, receiver, limits.idle_seconds)
    except TimeoutError:
        raise RefusalError(408, "The upload took too long or fell silent; try again, on a faster connection.") from None
    finally:
        receiver.close()
    if not receiver.ended:
        raise RefusalError(400, BROKEN_FORM)
    return receiver.received


async def _all_pieces(stream: AsyncIterator[bytes], receiver: Receiver, idle: float) -> None:
    pieces = stream.__aiter__()
    while True:
        try:
            piece = await _within(pieces.__anext__(), idle)
        except StopAsyncIteration:
            return
        receiver.take(piece)
        if receiver.due:
            await asyncio.to_thread(receiver.flush)


async def _within(waiting: Awaitable[bytes], seconds: float) -> bytes:
    async with asyncio.timeout(seconds):
        return await waiting
