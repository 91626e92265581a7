"""What a server accepts: its limits, and the errors for requests that it refuses."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import JSONResponse

from anofpdm.errors import AnoFPDMError

MIB = 1 << 20
RETRY_SECONDS = 30  # after a response that the server is busy


@dataclass(frozen=True)
class Limits:
    upload_bytes: int = 1024 * MIB  # of one request: all files of a scan
    voxels: int = 400**3  # of one file, as declared by its header
    unpacked_bytes: int = 4096 * MIB  # of a zip, as declared by its central directory
    zip_directory_bytes: int = 12 * MIB  # of the central directory, which is read into memory
    waiting: int = 20  # scans in the queue
    uploads: int = 16  # at the same time
    free_bytes: int = 512 * MIB  # of disk space to keep free
    idle_seconds: float = 60.0  # without any byte of an upload
    upload_seconds: float = 3600.0  # for a whole upload
    connections: int = 400
    connections_per_address: int = 100
    head_seconds: float = 5.0  # from the start of a connection, or its next request, to the end of its headers


class RequestError(AnoFPDMError):
    """Becomes a response with this status; `field` is the form field it refers to."""

    def __init__(self, status: int, message: str, field: str | None = None):
        super().__init__(message)
        self.status, self.field = status, field


def error_response(
    status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Every response that is an error has this body."""
    retry = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    return JSONResponse({"error": message, "field": field}, status, {**retry, **(headers or {})})


def scan_not_found() -> RequestError:
    return RequestError(404, "There is no such scan on this server; it may have been deleted.")
