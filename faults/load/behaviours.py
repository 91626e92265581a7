"""What clients of a server do: ordinary ones, slow ones and faulty ones."""

import contextlib
import http.client
import re
import select
import socket
import time
from collections.abc import Callable

from faults.load.client import FORM, TIMEOUT, Client

HALF_OPEN = 40

# ---- ordinary --------------------------------------------------------------------------------------------------------


def upload_and_check(client: Client) -> None:
    if (job := client.upload()) and client.wait(job):
        client.check(job)
        if client.rng.random() < 0.5:
            client.delete(job)


def cancel(client: Client) -> None:
    """While the job waits, or while it runs."""
    if job := client.upload(final=""):
        client.sleep(client.rng.uniform(0, 6))
        response = client.request(f"/api/jobs/{job}/cancel", "POST")
        if response.status not in (200, 409):
            client.report(f"cancel: {response.status}")
        client.sleep(15)  # until the worker that was ended is replaced


# ---- slow ------------------------------------------------------------------------------------------------------------


def upload_slowly(client: Client) -> None:
    """For ten seconds."""
    body, pieces = client.scan.form, 40
    size = -(-len(body) // pieces)
    with client.connect() as connection:
        client.send_head(connection, len(body))
        for start in range(0, len(body), size):
            connection.sendall(body[start : start + size])
            if select.select([connection], [], [], 0.25)[0]:  # a response before the end, as when the queue is full
                break
        job = client.accept(client.receive(connection))
    client.counts["slow upload"] += 1
    if job and client.wait(job):
        client.check(job)


def download_slowly(client: Client) -> None:
    if not (job := client.upload()) or not client.wait(job):
        return
    client.check(job)
    path = f"/api/results/{job}/files/report"
    expected = client.request(path).body
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT)
        connection.connect(("127.0.0.1", client.port))
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        received = b""
        while piece := connection.recv(max(2048, len(expected) // 40)):
            received += piece
            time.sleep(0.1)
    if received.partition(b"\r\n\r\n")[2] != expected or job[:6].encode() not in expected:
        client.report("the report is that of another job, or incomplete")
    client.counts["slow download"] += 1


def stop_sending(client: Client) -> None:
    """In the middle of a request."""
    with client.connect() as connection:
        connection.sendall(b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1")
        client.sleep(client.rng.uniform(3, 20))
    client.counts["stopped sending"] += 1


# ---- faulty ----------------------------------------------------------------------------------------------------------


def break_off(client: Client) -> None:
    """In the middle of an upload, or after it, without reading the response."""
    body = client.scan.form
    with client.connect() as connection:
        client.send_head(connection, len(body))
        connection.sendall(body[: client.rng.choice((client.rng.randrange(len(body)), len(body)))])
        client.sleep(client.rng.uniform(0, 2))
        if client.rng.random() < 0.5:  # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.counts["broken upload"] += 1
    client.sleep(1)


def leave_half_open(client: Client) -> None:
    """Many requests without the end of their headers: the server closes them."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(client.connect()) for _ in range(HALF_OPEN)]
        for connection in connections:
            connection.sendall(b"GET /api/status HTTP/1.1\r\nHost: ")
        for connection in connections:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionError):
                if connection.recv(100):
                    client.report("a response to half a request")
    client.counts["half-open requests"] += 1
    client.sleep(5)


def send_garbage(client: Client) -> None:
    """Bytes that are not HTTP, or only begin like it, or not a form."""
    form = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Type: {FORM}\r\nContent-Length: 4000"
    starts = (b"", b"GET /", b"POST /api/jobs HTTP/1.1\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01", form.encode())
    with client.connect() as connection, contextlib.suppress(ConnectionError):
        garbage = client.rng.randbytes(client.rng.randrange(1, 5000))
        connection.sendall(client.rng.choice(starts) + b"\r\n\r\n" + garbage + b"\r\n\r\n")
        connection.settimeout(5)
        with contextlib.suppress(TimeoutError):
            if re.match(rb"HTTP\S+ (2|500)", connection.recv(65536)):
                client.report("a wrong response to garbage")
    client.counts["garbage"] += 1
    client.sleep(0.5)


def declare_wrong_length(client: Client) -> None:
    """More, or less, than is sent."""
    body = client.scan.form
    with client.connect() as connection:
        less = client.rng.random() < 0.5
        client.send_head(connection, len(body) // 2 if less else 2 * len(body))
        with contextlib.suppress(ConnectionError):  # the server may close the connection early
            connection.sendall(body[: len(body) // 2] if less else body)
            connection.shutdown(socket.SHUT_WR)
            response = client.receive(connection)
            if response.status not in (400, 503):
                client.report(f"{response.status} for a wrong length")
    client.counts["wrong length"] += 1
    client.sleep(0.5)


def upload_damaged(client: Client) -> None:
    """A truncated scan: refused at once, or when it is read."""
    files = {name: content[: len(content) * 2 // 3] for name, content in client.scan.files.items()}
    if (job := client.upload(files, final="failed")) and client.wait(job):
        client.check(job)
    client.sleep(2)


Behaviour = Callable[[Client], None]
CLIENTS: dict[Behaviour, int] = {
    upload_and_check: 23, cancel: 1,
    upload_slowly: 6, download_slowly: 4, stop_sending: 2,
    break_off: 6, leave_half_open: 1, send_garbage: 4, declare_wrong_length: 2,
    upload_damaged: 1,
}  # fmt: skip
EVENTS = ("broken upload", "garbage", "wrong length", "stopped sending", "slow upload",
          "slow download", "half-open requests", "scans failed", "scans done")  # fmt: skip


def repeat(client: Client, behaviour: Behaviour) -> None:
    """Until the deadline. Refusals are expected, broken connections are not."""
    client.kind = behaviour.__name__
    while client.has_time:
        try:
            behaviour(client)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            client.report(f"{type(error).__name__}: {error}")
            client.sleep(1)
