"""The connections of a server: a request head has a deadline, and one address has a share of the connections.

uvicorn alone waits for a request head without limit, and refuses everyone once too many connections are open.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from anofpdm.viewer.limits import Limits, error_response

BUSY = "Too many requests are in progress; try again later."


class LimitedProtocol(H11Protocol):
    """One connection."""

    limits: Limits  # set by limited_protocol
    _opened = 0.0
    _deadline: asyncio.TimerHandle | None = None  # for the head of a request

    @property
    def is_waiting(self) -> bool:
        """For a request, or for the rest of its head."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        self._set_deadline()
        self._make_room(self.limits.connections_per_address, self._address)
        self._make_room(self.limits.connections)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_waiting:
            self._cancel_deadline()
        elif self._deadline is None:  # the first bytes after a response; more of them do not extend the deadline
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def _rank(self) -> tuple[bool, float]:
        """Lowest: the first to be closed. A client that still reads its response comes last."""
        return self.transport.get_write_buffer_size() > 0, self._opened

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(self.limits.head_seconds, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self, limit: int, address: str | None = None) -> None:
        """Above the limit, close the oldest connection without a request in progress, or refuse this one."""
        connections = [other for other in self.connections if isinstance(other, LimitedProtocol)]
        counted = [other for other in connections if address in (None, other._address)]
        if len(counted) <= limit:
            return
        if waiting := [other for other in counted if other is not self and other.is_waiting]:
            oldest = min(waiting, key=lambda other: other._rank)
            oldest.transport.abort()
            self.connections.discard(oldest)  # at once: the next one must not choose it again
        else:
            self.app = error_response(503, BUSY, headers={"Connection": "close"})


def limited_protocol(limits: Limits) -> type[LimitedProtocol]:
    """For uvicorn, which creates one for each connection."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
