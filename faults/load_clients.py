"""Clients of a server: ordinary ones, slow ones and faulty ones.

Each has a scan of its own, and compares its result with the right one, byte by byte.
"""

import contextlib
import hashlib
import http.client
import random
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.viewer.servers import FINISHED, Response, Server, encode_form

TIMEOUT = 120.0  # seconds for one response
HALF_OPEN = 40


@dataclass(frozen=True)
class OwnScan:
    files: dict[str, bytes]  # by modality
    expected: dict[str, bytes]  # by role: the output of `anofpdm segment`


@dataclass
class Client:
    server: Server
    scan: OwnScan
    rng: random.Random
    deadline: float  # of time.monotonic()
    accepted: dict[str, str] = field(default_factory=dict)  # job to its expected final state; "": any
    deleted: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.deadline - time.monotonic())))

    # ---- one request -------------------------------------------------------------------------------------------------

    def request(self, path: str, method: str = "GET") -> Response:
        return self.check_response(self.server.request(path, method, timeout=TIMEOUT))

    def check_response(self, response: Response) -> Response:
        """Whatever a client does, a refusal has a message, and there is no internal error."""
        status = response.status
        assert status < 400 or len(response.error) >= 10, f"{status} without a message: {response.body[:200]!r}"
        assert status != 500, f"an internal error: {response.body[:200]!r}"
        assert status != 503 or response.headers["Retry-After"], "refused without a time to try again"
        return response

    @contextlib.contextmanager
    def connect(self, sent: bytes = b"") -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT) as connection:
            connection.sendall(sent)
            yield connection

    def form(self, length: int | None = None) -> tuple[bytes, bytes]:
        """The head of an upload, which may declare another length, and its body."""
        body, kind = encode_form(self.scan.files)
        head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{self.server.port}\r\nContent-Type: {kind}\r\n"
        return f"{head}Content-Length: {length or len(body)}\r\nConnection: close\r\n\r\n".encode(), body

    def receive(self, connection: socket.socket) -> Response:
        response = http.client.HTTPResponse(connection, method="POST")
        response.begin()
        return self.check_response(Response(response.status, response.headers, response.read()))

    # ---- one scan ----------------------------------------------------------------------------------------------------

    def upload(self, files: dict[str, bytes] | None = None, final: str = "done") -> str | None:
        """The id of the job; None where the queue was full until the deadline."""
        while self.has_time:
            response = self.check_response(self.server.upload(files or self.scan.files))
            if job := self.accept(response, final):
                return job
            if response.status != 503:
                return None
            self.sleep(self.rng.uniform(0.5, 2))
        return None

    def accept(self, response: Response, final: str = "done") -> str | None:
        if response.status == 202:
            job = str(response.json["id"])
            self.accepted[job] = final
            return job
        is_refused_scan = response.status == 422 and final == "failed"
        assert response.status == 503 or is_refused_scan, f"not accepted: {response.body[:200]!r}"
        return None

    def wait(self, job: str) -> bool:
        """Whether it ended before the deadline; those that did not are checked at the end of the test."""
        while self.has_time:
            if self.request(f"/api/jobs/{job}").json["state"] in FINISHED:
                return True
            self.sleep(self.rng.uniform(0.5, 1.5))
        return False

    def check(self, job: str) -> None:
        """The job is ours and in its expected state; its result is right, byte by byte."""
        state, expected = self.request(f"/api/jobs/{job}").json, self.accepted[job]
        assert state["id"] == job
        assert state["state"] in ((expected,) if expected else FINISHED), f"must be {expected}: {state}"
        assert state["state"] != "failed" or state["error"], "failed without a message"
        if state["state"] == "done":
            self._check_result(job)

    def _check_result(self, job: str) -> None:
        place = f"/api/results/{job}"
        inputs = self.request(f"{place}/files/summary").json["inputs"]
        hashes = {name: hashlib.sha256(self.scan.files[name]).hexdigest() for name in inputs}
        assert {name: file["sha256"] for name, file in inputs.items()} == hashes != {}, (
            f"the result of another scan: {job}"
        )
        for role, content in {**self.scan.expected, "scan-flair": self.scan.files["flair"]}.items():
            assert self.request(f"{place}/files/{role}").body == content, f"{role} is not the right one for this scan"
        self.counts["results compared"] += 1

    def delete(self, job: str) -> None:
        assert self.request(f"/api/jobs/{job}", "DELETE").status == 204, "could not be deleted"
        self.deleted.add(job)
        assert self.request(f"/api/jobs/{job}").status == 404, "deleted, but still there"


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
        assert client.request(f"/api/jobs/{job}/cancel", "POST").status in (200, 409)
        client.sleep(15)  # until the worker that was ended is replaced


# ---- slow ------------------------------------------------------------------------------------------------------------


def upload_slowly(client: Client) -> None:
    """For ten seconds."""
    head, body = client.form()
    size = -(-len(body) // 40)
    with client.connect(head) as connection:
        for start in range(0, len(body), size):
            connection.sendall(body[start : start + size])
            if select.select([connection], [], [], 0.25)[0]:  # a response before the end, as when the queue is full
                break
        job = client.accept(client.receive(connection))
    if job and client.wait(job):
        client.check(job)


def download_slowly(client: Client) -> None:
    if not (job := client.upload()) or not client.wait(job):
        return
    path = f"/api/results/{job}/files/report"
    expected = client.request(path).body
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.server.port}\r\nConnection: close\r\n\r\n"
    with client.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head.encode())
        received = b""
        while piece := connection.recv(max(2048, len(expected) // 40)):
            received += piece
            time.sleep(0.1)
    assert received.partition(b"\r\n\r\n")[2] == expected, "an incomplete report"
    assert job[:6].encode() in expected, "the report of another job"


# ---- faulty ----------------------------------------------------------------------------------------------------------


def break_off(client: Client) -> None:
    """In the middle of an upload, or after it, without reading the response."""
    head, body = client.form()
    with client.connect(head) as connection:
        connection.sendall(body[: client.rng.choice((client.rng.randrange(len(body)), len(body)))])
        client.sleep(client.rng.uniform(0, 2))
        if client.rng.random() < 0.5:  # a reset instead of an orderly end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.sleep(1)


def leave_half_open(client: Client) -> None:
    """Many requests without the end of their headers: the server closes them."""
    with contextlib.ExitStack() as stack:
        half = b"GET /api/status HTTP/1.1\r\nHost: "
        for connection in [stack.enter_context(client.connect(half)) for _ in range(HALF_OPEN)]:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert not connection.recv(100), "a response to half a request"
    client.sleep(5)


def send_garbage(client: Client) -> None:
    """Bytes that are not HTTP, or only begin like it, or not a form."""
    starts = (b"", b"GET /", b"POST /api/jobs HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", client.form(4000)[0])
    garbage = client.rng.randbytes(client.rng.randrange(1, 5000))
    with contextlib.suppress(ConnectionError), client.connect(client.rng.choice(starts) + garbage) as connection:
        connection.settimeout(5)
        with contextlib.suppress(TimeoutError):
            assert not re.match(rb"HTTP\S+ (2|500)", connection.recv(65536)), "a wrong response to garbage"
    client.sleep(0.5)


def declare_wrong_length(client: Client) -> None:
    """More, or less, than is sent."""
    size = len(client.form()[1])
    head, body = client.form(client.rng.choice((size // 2, 2 * size)))
    with client.connect(head) as connection, contextlib.suppress(ConnectionError):  # it may be closed early
        connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        assert client.receive(connection).status in (400, 503)
    client.sleep(0.5)


def upload_damaged(client: Client) -> None:
    """A truncated scan: refused at once, or when it is read."""
    files = {name: content[: len(content) * 2 // 3] for name, content in client.scan.files.items()}
    if (job := client.upload(files, final="failed")) and client.wait(job):
        client.check(job)
    client.sleep(2)


CLIENTS: dict[Callable[[Client], None], int] = {
    upload_and_check: 24, cancel: 1, upload_slowly: 6, download_slowly: 4,
    break_off: 7, leave_half_open: 1, send_garbage: 4, declare_wrong_length: 2, upload_damaged: 1,
}  # fmt: skip


def repeat(client: Client, behaviour: Callable[[Client], None]) -> None:
    """Until the deadline. Refusals are expected, broken connections are not."""
    while client.has_time:
        try:
            behaviour(client)
            client.counts[behaviour.__name__] += 1
        except (AssertionError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
            client.errors.append(f"{behaviour.__name__}: {type(error).__name__}: {error}")
            client.sleep(1)
