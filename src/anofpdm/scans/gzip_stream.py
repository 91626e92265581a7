"""Streaming decompression of gzip files, with verified checksums."""

from typing import BinaryIO, Protocol

from zlib_ng import zlib_ng  # decompression dominates the reading time of scans; twice as fast as zlib

MAX_PADDING = 64 << 20  # zeros after a compressed file
CHUNK = 8 << 20  # of a compressed file; most scans are one
MULTI_MEMBER_CHUNK = 16 << 10  # the rest after a gzip member is read again with the next one
GzipError: type[Exception] = zlib_ng.error  # type: ignore[assignment]  # a class, contrary to its stub


class Stream(Protocol):
    def read(self, count: int, /) -> bytes | bytearray: ...


class GzipStream:
    """Decompresses only as much as is read. Python's own reader is slower, and does not verify the last checksum if
    exactly the needed bytes are read; here, reading a byte past the end verifies it."""

    def __init__(self, file: BinaryIO):
        self._file, self._chunk = file, CHUNK
        self._inflate = zlib_ng.decompressobj(wbits=31)

    def read(self, count: int, /) -> bytearray:
        data = bytearray()
        while len(data) < count:
            if self._inflate.eof and not self._next_member():
                break
            feed = self._inflate.unconsumed_tail or self._file.read(self._chunk)
            piece = self._inflate.decompress(feed, count - len(data))
            data += piece
            if not feed and not piece and not self._inflate.eof:
                raise EOFError
        return data

    def _next_member(self) -> bool:
        """A gzip file may have several members, and may be padded with zeros."""
        zeros, rest = 0, self._inflate.unused_data.lstrip(b"\0")
        while not rest and (chunk := self._file.read(self._chunk)):
            zeros, rest = zeros + len(chunk), chunk.lstrip(b"\0")
            if zeros > MAX_PADDING and not rest:
                raise GzipError("too many zeros after the end")
        if not rest:
            return False
        self._chunk = MULTI_MEMBER_CHUNK
        self._inflate = zlib_ng.decompressobj(wbits=31)
        self._file.seek(-len(rest), 1)
        return True


def open_stream(file: BinaryIO) -> Stream:
    """By the file's contents, not its name."""
    is_gzip = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return GzipStream(file) if is_gzip else file
