"""Connections without a complete request, and many of them from one address."""

import contextlib
import socket
import sys
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")

from anofpdm.viewer.limits import Limits  # noqa: E402
from anofpdm.viewer.server import create_config  # noqa: E402

HALF = b"GET /api/results HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
WHOLE, WAITING = (b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path for path in (b"/", b"/wait"))
LIMITS = Limits(connections=6, connections_per_address=3, head_seconds=0.4)


@pytest.fixture
def connect():
    """Opens connections, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def connect(port, sent=b"", source="127.0.0.1"):
            peer = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
            stack.callback(peer.close)
            peer.sendall(sent)
            return peer

        yield connect


@pytest.fixture
def limited():
    """Port of a server with LIMITS, in a thread: /wait responds when its client has left, all else at once."""

    async def app(scope, receive, send):
        while scope["path"] == "/wait" and (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    server = uvicorn.Server(create_config(app, LIMITS))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join()


def receive(peer) -> bytes:
    """Until the connection ends, or is silent."""
    peer.settimeout(0.2)
    received = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        while piece := peer.recv(65536):
            received += piece
    return received


def seconds_until_closed(peer, meanwhile=b"") -> float:
    """While bytes are sent, if any are given."""
    peer.settimeout(0.05 if meanwhile else 10)
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - began < 10:
            with contextlib.suppress(TimeoutError):
                assert peer.recv(100) == b""
                break
            peer.sendall(meanwhile)
    return time.monotonic() - began


def test_hundreds_of_half_open_requests_lock_nobody_out(view_server, connect):
    for _ in range(450):
        connect(view_server.port, HALF)
    began = time.monotonic()
    for path in ("/", "/api/results"):
        assert view_server.request(path).status == 200
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(("sent", "meanwhile"), [(b"", b""), (b"GET", b""), (HALF, b""), (HALF, b"x")])
def test_a_request_head_has_a_deadline_that_more_bytes_do_not_extend(limited, connect, sent, meanwhile):
    assert 0.1 < seconds_until_closed(connect(limited, sent), meanwhile) < 3


def test_every_request_of_a_connection_has_a_deadline_but_not_the_time_between(limited, connect):
    busy, peer = connect(limited, WAITING), connect(limited, WHOLE)
    assert receive(peer).endswith(b"ok")
    time.sleep(2 * LIMITS.head_seconds)
    assert receive(busy) == b""
    peer.sendall(WHOLE)
    assert receive(peer).endswith(b"ok")
    peer.sendall(HALF)
    assert seconds_until_closed(peer) < 3


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of this machine only on Linux")
def test_one_address_has_a_share_of_the_connections(limited, connect):
    waiting = [connect(limited, WAITING) for _ in range(LIMITS.connections_per_address)]
    assert receive(waiting[-1]) == b""
    refused = receive(connect(limited, WHOLE))
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 30" in refused.lower()
    assert b"Too many requests are in progress" in refused
    assert receive(connect(limited, WHOLE, source="127.0.0.2")).endswith(b"ok")
    waiting.pop().close()
    assert receive(connect(limited, WHOLE)).endswith(b"ok")
