"""Clients of a server: ordinary ones, slow ones, and broken ones. Each has a scan of its own, and knows its result."""

import contextlib
import hashlib
import http.client
import json
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

OVER = ("done", "failed", "cancelled")
PATIENT = 120.0  # seconds for one answer
FILES = {"mask": "mask.nii.gz", "map": "anomaly_map.nii.gz"}
BOUNDARY = "----a-boundary"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


@dataclass(frozen=True)
class OwnScan:
    files: dict[str, bytes]  # by modality
    right: dict[str, bytes]  # by role: what `anofpdm segment` makes of it

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
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def said(self) -> dict[str, object]:
        return json.loads(self.body)


@dataclass
class Client:
    port: int
    scan: OwnScan
    chance: random.Random
    until: float  # of time.monotonic()
    kind: str = ""
    accepted: dict[str, str] = field(default_factory=dict)  # id to the state it must come to; empty: any
    deleted: set[str] = field(default_factory=set)
    looked_at: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.until

    def rest(self, seconds: float) -> None:
        time.sleep(max(0.0, min(seconds, self.until - time.monotonic())))

    def complain(self, said: str) -> None:
        self.wrong.append(f"{self.kind}: {said}")

    # ---- one question ------------------------------------------------------------------------------------------------

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENT)
        with contextlib.closing(connection):
            connection.request(method, path, body, {name.replace("_", "-"): said for name, said in headers.items()})
            return self.heard(connection.getresponse())

    def heard(self, response: http.client.HTTPResponse) -> Answer:
        """Whatever a client does: a refusal says why, and nothing is the server's own fault."""
        answer = Answer(response.status, response.headers, response.read())
        self.counts[f"answers {answer.status}"] += 1
        if answer.status >= 400:
            try:
                why = answer.said["error"]
            except (ValueError, KeyError, TypeError):
                why = None
            if not isinstance(why, str) or len(why) < 10:
                self.complain(f"{answer.status} without a sentence: {answer.body[:200]!r}")
        if answer.status == 500 or (answer.status == 503 and not answer.headers["Retry-After"]):
            self.complain(f"{answer.status}: {answer.body[:200]!r}")
        return answer

    @contextlib.contextmanager
    def line(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENT) as line:
            yield line

    def post(self, line: socket.socket, length: int) -> None:
        kind = FORM["Content-Type"]
        head = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: {kind}\r\n"
        line.sendall(f"{head}Content-Length: {length}\r\nConnection: close\r\n\r\n".encode())

    def answer_on(self, line: socket.socket) -> Answer:
        response = http.client.HTTPResponse(line, method="POST")
        response.begin()
        return self.heard(response)

    # ---- a scan ------------------------------------------------------------------------------------------------------

    def upload(self, files: dict[str, bytes] | None = None, comes_to: str = "done") -> str | None:
        """Its id; none where the queue was full until time was up."""
        while self.has_time:
            answer = self.ask("/api/jobs", "POST", form(files or self.scan.files), Content_Type=FORM["Content-Type"])
            if job := self.taken(answer, comes_to):
                return job
            if answer.status != 503:
                return None
            self.rest(self.chance.uniform(0.5, 2))
        return None

    def taken(self, answer: Answer, comes_to: str = "done") -> str | None:
        if answer.status == 202:
            job = str(answer.said["id"])
            self.accepted[job] = comes_to
            return job
        if answer.status != 503:
            self.complain(f"not taken, {answer.status}: {answer.body[:200]!r}")
        return None

    def wait(self, job: str) -> bool:
        """Whether it was over in time; if not, it is looked at when all is quiet."""
        while self.has_time:
            if self.ask(f"/api/jobs/{job}").said["state"] in OVER:
                return True
            self.rest(self.chance.uniform(0.5, 1.5))
        return False

    def check(self, job: str) -> None:
        """That it is ours, to the byte, and has come to what it must."""
        state = self.ask(f"/api/jobs/{job}").said
        self.counts[f"scans {state['state']}"] += job not in self.looked_at
        self.looked_at.add(job)
        wanted = self.accepted[job]
        if state["id"] != job or state["state"] not in ((wanted,) if wanted else OVER):
            self.complain(f"asked for {job[:6]}, which must be {wanted}: {state}")
        elif state["state"] == "failed" and not state["error"]:
            self.complain("failed, and does not say why")
        elif state["state"] == "done":
            self._check_result(job)

    def _check_result(self, job: str) -> None:
        place = f"/api/results/{job}"
        told = self.ask(place).said
        said = self.ask(f"{place}/files/summary").said["inputs"]
        ours = {name: hashlib.sha256(content).hexdigest() for name, content in self.scan.files.items()}
        if told["key"] != job or {name: one["sha256"] for name, one in said.items()} != ours:
            self.complain(f"the result of another scan: {told['key']} for {job}")
        for role, right in {**self.scan.right, "scan-flair": self.scan.files["flair"]}.items():
            if self.ask(f"{place}/files/{role}").body != right:
                self.complain(f"{role} is not what is right for this scan")
        self.counts["results compared"] += 1

    def delete(self, job: str) -> None:
        if self.ask(f"/api/jobs/{job}", "DELETE").status != 204:
            self.complain("could not be deleted")
        self.deleted.add(job)
        if self.ask(f"/api/jobs/{job}").status != 404:
            self.complain("deleted, and still there")


# ---- ordinary --------------------------------------------------------------------------------------------------------


def ordinary(client: Client) -> None:
    if (job := client.upload()) and client.wait(job):
        client.check(job)
        if client.chance.random() < 0.5:
            client.delete(job)


def impatient(client: Client) -> None:
    """Cancels, as often while it waits as while it is worked on."""
    if job := client.upload(comes_to=""):
        client.rest(client.chance.uniform(0, 6))
        answer = client.ask(f"/api/jobs/{job}/cancel", "POST")
        if answer.status not in (200, 409):
            client.complain(f"cancelled: {answer.status}")
        client.rest(15)  # a worker that is ended takes its time to come back


# ---- slow ------------------------------------------------------------------------------------------------------------


def dribbling(client: Client) -> None:
    """Sends for ten seconds what takes a moment."""
    body, pieces = client.scan.form, 40
    size = -(-len(body) // pieces)
    with client.line() as line:
        client.post(line, len(body))
        for start in range(0, len(body), size):
            line.sendall(body[start : start + size])
            if select.select([line], [], [], 0.25)[0]:  # an answer before the end, as when the queue is full
                break
        job = client.taken(client.answer_on(line))
    client.counts["dribbled"] += 1
    if job is None:
        client.rest(client.chance.uniform(0.5, 2))
    elif client.wait(job):
        client.check(job)


def slow_to_read(client: Client) -> None:
    """Takes its report a little at a time."""
    if not (job := client.upload()) or not client.wait(job):
        return
    client.check(job)
    path = f"/api/results/{job}/files/report"
    right = client.ask(path).body
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.settimeout(PATIENT)
        line.connect(("127.0.0.1", client.port))
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nConnection: close\r\n\r\n".encode())
        read = b""
        while piece := line.recv(max(2048, len(right) // 40)):
            read += piece
            time.sleep(0.1)
    if read.partition(b"\r\n\r\n")[2] != right or job[:6].encode() not in right:
        client.complain("the report is not its own, or not whole")
    client.counts["read slowly"] += 1


def silent(client: Client) -> None:
    """Begins to ask and does not go on."""
    with client.line() as line:
        line.sendall(b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1")
        client.rest(client.chance.uniform(3, 20))
    client.counts["fell silent"] += 1


# ---- broken ----------------------------------------------------------------------------------------------------------


def cut_off(client: Client) -> None:
    body = client.scan.form
    with client.line() as line:
        client.post(line, len(body))
        line.sendall(body[: client.chance.randrange(len(body))])
        client.rest(client.chance.uniform(0, 2))
        if client.chance.random() < 0.5:  # a reset instead of an end
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.counts["cut off in an upload"] += 1
    client.rest(1)


def garbage(client: Client) -> None:
    """What is no HTTP at all, or only begins so."""
    words = client.chance.choice(
        (b"", b"GET /", b"POST /api/jobs HTTP/1.1\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01")
    )
    with client.line() as line, contextlib.suppress(ConnectionError):
        line.sendall(words + client.chance.randbytes(client.chance.randrange(1, 5000)) + b"\r\n\r\n")
        line.settimeout(5)
        with contextlib.suppress(TimeoutError):
            if b" 500 " in line.recv(65536).partition(b"\r\n")[0]:
                client.complain("garbage is answered with 500")
    client.counts["garbage"] += 1
    client.rest(0.5)


def no_form(client: Client) -> None:
    body = client.chance.randbytes(20_000)
    kind = client.chance.choice((FORM["Content-Type"], "multipart/form-data", "text/plain", "application/json"))
    answer = client.ask("/api/jobs", "POST", body, Content_Type=kind)
    if answer.status not in (400, 415, 503):
        client.complain(f"no form, and {answer.status}")
    client.counts["no form"] += 1
    client.rest(0.5)


def wrong_length(client: Client) -> None:
    """Says it sends more, or less, than it does."""
    body = client.scan.form
    with client.line() as line:
        less = client.chance.random() < 0.5
        client.post(line, len(body) // 2 if less else 2 * len(body))
        with contextlib.suppress(ConnectionError):  # it may hang up when it has heard enough
            line.sendall(body[: len(body) // 2] if less else body)
            line.shutdown(socket.SHUT_WR)
            answer = client.answer_on(line)
            if answer.status not in (400, 503):
                client.complain(f"wrong length, and {answer.status}")
    client.counts["wrong length"] += 1
    client.rest(0.5)


def damaged(client: Client) -> None:
    """A scan that is cut short: seen at the door, or when its turn comes."""
    files = {name: content[: len(content) * 2 // 3] for name, content in client.scan.files.items()}
    if (job := client.upload(files, comes_to="failed")) and client.wait(job):
        client.check(job)
    client.rest(2)


def vanishing(client: Client) -> None:
    """Uploads and is not seen again; what it sent is done all the same."""
    if client.chance.random() < 0.5:
        client.upload()
    else:
        body = client.scan.form
        with client.line() as line:  # not even the answer is heard
            client.post(line, len(body))
            line.sendall(body)
    client.counts["vanished"] += 1
    client.rest(client.chance.uniform(3, 10))


def curious(client: Client) -> None:
    """Asks for what is not its own."""
    job = client.chance.randbytes(16).hex()
    for path in (f"/api/jobs/{job}", f"/api/results/{job}", f"/api/results/{job}/files/mask", "/api/results/../jobs"):
        if client.ask(path).status != 404:
            client.complain(f"{path} is answered")
    if client.ask("/api/status").status != 200:
        client.complain("does not say how it stands")
    client.counts["curious"] += 1
    client.rest(1)


Behaviour = Callable[[Client], None]
CROWD: dict[Behaviour, int] = {
    ordinary: 24, impatient: 1,
    dribbling: 6, slow_to_read: 4, silent: 2,
    cut_off: 3, garbage: 2, no_form: 2, wrong_length: 2, damaged: 1, vanishing: 2, curious: 1,
}  # fmt: skip


def keep_on(client: Client, behaviour: Behaviour) -> None:
    """Until time is up; nothing that a client meets may be worse than a refusal."""
    client.kind = behaviour.__name__
    while client.has_time:
        try:
            behaviour(client)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as problem:
            client.complain(f"{type(problem).__name__}: {problem}")
            client.rest(1)
