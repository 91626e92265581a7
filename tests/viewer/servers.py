"""A server in its own process, started from the command line, and requests to it."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from faults.processes import wait_until, worker_pids

FINISHED = ("done", "failed", "cancelled")


@dataclass
class Response:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


def encode_form(parts, names=None) -> tuple[bytes, str]:
    """A multipart body as a browser sends it; `names` are the file names given by the client."""
    boundary, body = "----a-boundary", b""
    for field, content in parts.items():
        content = content.read_bytes() if isinstance(content, Path) else content
        name = (names or {}).get(field, f"{field}.nii.gz")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{name}"\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


class Server:
    """`anofpdm serve` or `view`, started from the command line, or what `held_by` starts in its place."""

    def __init__(self, *arguments, log: Path, env=None, held_by=None):
        self.log = log
        program = [str(Path(__file__).with_name("held_server.py"))] if held_by else ["-m", "anofpdm"]
        command = [sys.executable, *program, *map(str, arguments), "--port", "0"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **(held_by.env if held_by else {}), **(env or {})}
        self.process = subprocess.Popen(
            command, stdout=log.open("w"), stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        self.pid = self.process.pid
        self.address = self._wait_for_address()
        self.port = urlsplit(self.address).port

    def _wait_for_address(self) -> str:
        pattern = re.compile(r"^open (\S+)$", re.MULTILINE)
        wait_until(lambda: pattern.search(self.log.read_text()) or self.process.poll() is not None, 60, 0.05)
        address = pattern.search(self.log.read_text())
        assert address, f"the server did not start: {self.log.read_text()}"
        return address[1]

    def request(self, path, method="GET", body=None, headers=None, timeout=30) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Response(response.status, response.headers, response.read())

    def upload(self, parts, names=None, headers=None) -> Response:
        body, content_type = encode_form(parts, names)
        return self.request("/api/jobs", "POST", body, {"Content-Type": content_type, **(headers or {})})

    def job(self, job_id) -> dict:
        return self.request(f"/api/jobs/{job_id}").json

    def wait(self, job_id) -> dict:
        """Until the job has ended."""
        ended = wait_until(lambda: self.job(job_id)["state"] in FINISHED, 120, 0.05)
        assert ended, f"the job is still {self.job(job_id)}: {self.log.read_text()}"
        return self.job(job_id)

    def finish(self, parts, names=None) -> tuple[dict, dict]:
        """Upload a scan: its job, which must be done, and its result."""
        response = self.upload(parts, names)
        assert response.status == 202, response.error
        job = self.wait(response.json["id"])
        assert job["state"] == "done", job["error"]
        return job, self.request(f"/api/results/{job['id']}").json

    def delete(self, job) -> None:
        assert self.request(f"/api/jobs/{job['id']}", "DELETE").status == 204

    @property
    def worker(self) -> int:
        (pid,) = worker_pids(self)
        return pid

    def stop(self, how=signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(20)
