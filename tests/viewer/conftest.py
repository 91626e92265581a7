"""An untrained model, a server in its own process, and a client for it."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from anofpdm.errors import ScanWarning
from faults.processes import worker_pids
from tests import optional_toys, toys

SHAPE = (32, 36, 14)
FINISHED = ("done", "failed", "cancelled")

# ---- models and scans ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A student alone, which calls every slice unhealthy, needs FLAIR and T2, and takes T1 where it is given."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    return optional_toys.save_model(folder, channels=("flair", "t2", "t1"), optional=("t1",), bias=-1.0)


@pytest.fixture(scope="session")
def make_scan(tmp_path_factory):
    """Makes files of a small synthetic head, different for each seed."""

    def make(seed, shape=SHAPE):
        folder, affine = tmp_path_factory.mktemp("scan"), toys.affine_of("LPS", (4, 4, 4), shape=shape)
        heads = {name: toys.head(shape, 10 * seed + number, affine) for number, name in enumerate(("flair", "t2"))}
        return {name: toys.save(folder / f"{name}.nii.gz", head, affine) for name, head in heads.items()}

    return make


@pytest.fixture(scope="session")
def scan(make_scan):
    return make_scan(0)


# ---- servers ---------------------------------------------------------------------------------------------------------


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
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            if address := re.search(r"^open (\S+)$", self.log.read_text(), re.MULTILINE):
                return address[1]
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

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

    def wait(self, job_id, *states, seconds=120) -> dict:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job = self.job(job_id)
            if job["state"] in (states or FINISHED):
                return job
            time.sleep(0.05)
        raise AssertionError(f"the job is still {job}: {self.log.read_text()}")

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


class Hold:
    """Lets a server hold every scan in the middle (held_server.py); its result is then the stored one."""

    def __init__(self, file: Path, result: Path):
        self._file = file
        self.env = {"HOLD_SCANS": str(file), "HELD_RESULT": str(result)}
        self.close()

    def close(self) -> None:
        self._file.touch()

    def release(self) -> None:
        self._file.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Starts servers, which are stopped after the tests."""
    servers = []

    def start(*arguments, **options):
        servers.append(Server(*arguments, log=tmp_path_factory.mktemp("log") / "log", **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def make_hold(results_folder, tmp_path_factory):
    """Closed at first."""
    return lambda: Hold(tmp_path_factory.mktemp("hold") / "hold", results_folder / "p1")


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def server(start, model, store_folder):
    return start("serve", model, "--out", store_folder, "--device", "cpu", "--upload-mb", 8)


@pytest.fixture(scope="session")
def done_job(server, scan):
    """A finished job that no test deletes."""
    return server.finish(scan)[0]


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def results_folder(model, make_scan, tmp_path_factory):
    """Results of two scans: one in its own folder, one with BIDS names."""
    import anofpdm
    from anofpdm.segment.outputs import bids_suffix

    folder, name = tmp_path_factory.mktemp("results"), "sub-07_ses-1"
    loaded = anofpdm.load(model, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)  # lesions are large, to be seen on pages
        first, second = (loaded.segment(make_scan(seed)) for seed in (1, 2))
    first.save(folder / "p1")
    in_bids = folder / "sub-07" / "ses-1" / "anat"
    second.save(in_bids, lambda file: name + bids_suffix(file), title=name)
    return folder


@pytest.fixture(scope="session")
def view_server(start, results_folder):
    return start("view", results_folder)
