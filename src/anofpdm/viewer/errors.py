"""Requests that the server refuses."""

from anofpdm.errors import AnoFPDMError


class RequestError(AnoFPDMError):
    """Becomes a response with this status; `field` is the form field it refers to."""

    def __init__(self, status: int, message: str, field: str | None = None, retry_seconds: int | None = None):
        super().__init__(message)
        self.status, self.message, self.field, self.retry_seconds = status, message, field, retry_seconds

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_seconds is None else {"Retry-After": str(self.retry_seconds)}


def scan_not_found() -> RequestError:
    return RequestError(404, "There is no such scan on this server; it may have been deleted.")
