"""A client of the server. It has a scan of its own, and compares the result with the right one, byte by byte."""

import contextlib
import hashlib
import http.client
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FINAL = ("done", "failed", "cancelled")
TIMEOUT = 120.0  # seconds for one response
FILES = {"mask": "mask.nii.gz", "map": "anomaly_map.nii.gz"}
BOUNDARY = "----a-boundary"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class OwnScan:
    files: dict[str, bytes]  # by modality
    expected: dict[str, bytes]  # by role: the output of `anofpdm segment`

    @property
    def form(self) -> bytes:
        return form(self.files)


def own_scan(scan: Path, result: Path, modalities: tuple[str, ...]) -> OwnScan:
    files = {name: (scan / f"{scan.name}_{name}.nii.gz").read_bytes() for name in modalities}
    return OwnScan(files, {role: (result / name).read_bytes() for role, name in FILES.items()})


def form(files: dict[str, bytes]) -> bytes:
    body = b""
    for name, content in files.items():
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.nii.gz"\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


@dataclass
class Response:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def payload(self) -> dict[str, object]:
        return json.loads(self.body)


@dataclass
class Client:
    port: int
    scan: OwnScan
    rng: random.Random
    deadline: float  # of time.monotonic()
    kind: str = ""
    accepted: dict[str, str] = field(default_factory=dict)  # job to its expected final state; "": any
    deleted: set[str] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.deadline - time.monotonic())))

    def report(self, error: str) -> None:
        self.errors.append(f"{self.kind}: {error}")

    # ---- one request -------------------------------------------------------------------------------------------------

    def request(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            return self.read(connection.getresponse())

    def read(self, response: http.client.HTTPResponse) -> Response:
        """Whatever a client does, a refusal has a message, and there is no internal error."""
        result = Response(response.status, response.headers, response.read())
        self.counts[f"responses {result.status}"] += 1
        if result.status >= 400:
            try:
                message = result.payload["error"]
            except (ValueError, KeyError, TypeError):
                message = None
            if not isinstance(message, str) or len(message) < 10:
                self.report(f"{result.status} without a message: {result.body[:200]!r}")
        if result.status == 500 or (result.status == 503 and not result.headers["Retry-After"]):
            self.report(f"{result.status}: {result.body[:200]!r}")
        return result

    @contextlib.contextmanager
    def connect(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT) as connection:
            yield connection

    def send_head(self, connection: socket.socket, length: int) -> None:
        head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: {FORM}\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\nConnection: close\r\n\r\n".encode())

    def receive(self, connection: socket.socket) -> Response:
        response = http.client.HTTPResponse(connection, method="POST")
        response.begin()
        return self.read(response)

    # ---- one scan ----------------------------------------------------------------------------------------------------

    def upload(self, files: dict[str, bytes] | None = None, final: str = "done") -> str | None:
        """The id of the job; None where the queue was full until the deadline."""
        while self.has_time:
            body = form(files or self.scan.files)
            response = self.request("/api/jobs", "POST", body, Content_Type=FORM)
            if job := self.accept(response, final):
                return job
            if response.status != 503:
                return None
            self.sleep(self.rng.uniform(0.5, 2))
        return None

    def accept(self, response: Response, final: str = "done") -> str | None:
        if response.status == 202:
            job = str(response.payload["id"])
            self.accepted[job] = final
            return job
        if response.status != 503:
            self.report(f"not accepted, {response.status}: {response.body[:200]!r}")
        return None

    def wait(self, job: str) -> bool:
        """Whether it ended before the deadline; those that did not are checked at the end of the test."""
        while self.has_time:
            if self.request(f"/api/jobs/{job}").payload["state"] in FINAL:
                return True
            self.sleep(self.rng.uniform(0.5, 1.5))
        return False

    def check(self, job: str) -> None:
        """The job is ours and in its expected state; its result is right, byte by byte."""
        state = self.request(f"/api/jobs/{job}").payload
        self.counts[f"scans {state['state']}"] += job not in self.checked
        self.checked.add(job)
        expected = self.accepted[job]
        if state["id"] != job or state["state"] not in ((expected,) if expected else FINAL):
            self.report(f"job {job[:6]} must be {expected}: {state}")
        elif state["state"] == "failed" and not state["error"]:
            self.report("failed without a message")
        elif state["state"] == "done":
            self._check_result(job)

    def _check_result(self, job: str) -> None:
        place = f"/api/results/{job}"
        key = self.request(place).payload["key"]
        inputs = self.request(f"{place}/files/summary").payload["inputs"]
        assert isinstance(inputs, dict)
        hashes = {name: hashlib.sha256(self.scan.files[name]).hexdigest() for name in inputs}
        if key != job or not inputs or {name: file["sha256"] for name, file in inputs.items()} != hashes:
            self.report(f"the result of another scan: {key} for {job}")
        for role, content in {**self.scan.expected, "scan-flair": self.scan.files["flair"]}.items():
            if self.request(f"{place}/files/{role}").body != content:
                self.report(f"{role} is not the right one for this scan")
        self.counts["results compared"] += 1

    def delete(self, job: str) -> None:
        if self.request(f"/api/jobs/{job}", "DELETE").status != 204:
            self.report("could not be deleted")
        self.deleted.add(job)
        if self.request(f"/api/jobs/{job}").status != 404:
            self.report("deleted, but still there")
