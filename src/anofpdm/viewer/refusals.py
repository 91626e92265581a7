"""No, in words: what the server answers when it does not do what was asked."""

from anofpdm.errors import AnoFPDMError


class RefusalError(AnoFPDMError):
    """Becomes an answer with this status; `field` names the part of a form that it is about."""

    def __init__(self, status: int, message: str, field: str | None = None, retry_seconds: int | None = None):
        super().__init__(message)
        self.status, self.message, self.field, self.retry_seconds = status, message, field, retry_seconds

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_seconds is None else {"Retry-After": str(self.retry_seconds)}


def gone() -> RefusalError:
    return RefusalError(404, "There is no such scan here; it may have been deleted.")
