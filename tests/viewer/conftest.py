"""A model that knows nothing but answers, a server in a process of its own, and clients for it."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests import toys

SHAPE = (32, 36, 14)
OVER = ("done", "failed", "cancelled")


# ---- models and scans ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Done with a scan in a moment."""
    return calibrated(untrained(tmp_path_factory.mktemp("quick") / "model"), levels=3)


@pytest.fixture(scope="session")
def slow_model(model, tmp_path_factory):
    """Takes a while, so that it can be met in the middle."""
    folder = tmp_path_factory.mktemp("slow") / "model"
    shutil.copytree(model, folder)
    return calibrated(folder, levels=8)


def untrained(folder: Path) -> Path:
    import torch

    from anofpdm.network import checkpoint
    from anofpdm.network.unet import UNet, preset

    torch.manual_seed(0)
    network = UNet(preset("tiny", 2))
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    said = {"format": checkpoint.FORMAT, "task": "guided", "modalities": ["flair", "t2"], "size": 32, "step": 0}
    folder.mkdir(parents=True)
    checkpoint.save_model(folder, network.state_dict(), {**said, "network": {**network.config.__dict__}})
    return folder


def calibrated(folder: Path, levels: int) -> Path:
    """More levels, more work. Every slice is called unhealthy, so that there is something to see."""
    import torch

    from anofpdm.calibration.files import to_json
    from anofpdm.method.calibration import CONTEXT_MM, Calibration, ContextFit
    from anofpdm.method.detection import Accuracy, CurveDetector
    from anofpdm.method.evidence import EvidenceSettings
    from anofpdm.network.predictor import load_trained

    trained = load_trained(folder, torch.device("cpu"))
    accuracy = Accuracy(1.0, 1.0)
    detector = CurveDetector(np.full(levels, -10.0), np.ones(levels), np.zeros(levels), 1.0, 1.0)
    said = Calibration(
        settings=EvidenceSettings(tuple(range(0, 10 * levels, 10)), (0,)), strength=1.0, best_strength=1.0, cut=2.0,
        divergence_max=0.1, detector="cosine", cosine_accuracy=accuracy, candidates=(), accuracy_ratio=0.98,
        n_healthy=1, n_unhealthy=1, n_patients=2, modalities=("flair", "t2"), checkpoint_sha256=trained.sha256,
        fitted=tuple(ContextFit(mm, detector, accuracy, 0.001) for mm in (0.0, CONTEXT_MM)),
    )  # fmt: skip
    (folder / "calibration.json").write_text(to_json(said))
    return folder


def scan_files(folder: Path, seed: int = 0, shape=SHAPE) -> dict[str, Path]:
    """FLAIR and T2 of a small head; no two seeds are alike."""
    affine = toys.affine_of("LPS", (1, 1, 2), shape=shape)
    return {
        name: toys.save(folder / f"{name}.nii.gz", toys.head(shape, 10 * seed + number, affine), affine)
        for number, name in enumerate(("flair", "t2"))
    }


@pytest.fixture(scope="session")
def scan(tmp_path_factory):
    return scan_files(tmp_path_factory.mktemp("scan"))


@pytest.fixture(scope="session")
def make_scan(tmp_path_factory):
    return lambda seed, shape=SHAPE: scan_files(tmp_path_factory.mktemp("scan"), seed, shape)


# ---- servers ---------------------------------------------------------------------------------------------------------


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def said(self):
        return self.json["error"]


def form(parts, names=None) -> tuple[bytes, str]:
    """A multipart body as a browser writes it; `names` are what the client calls its files."""
    boundary, body = "----a-boundary", b""
    for field, content in parts.items():
        content = content.read_bytes() if isinstance(content, Path) else content
        called = (names or {}).get(field, f"{field}.nii.gz")
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{called}"\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


class Server:
    """`anofpdm serve` or `view` as a user starts it."""

    def __init__(self, *words, log: Path, env=None):
        self.log = log
        command = [sys.executable, "-m", "anofpdm", *map(str, words), "--port", "0"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.process = subprocess.Popen(
            command, stdout=log.open("w"), stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        self.address = self._address()
        self.port = urlsplit(self.address).port

    def _address(self) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            found = re.search(r"^open (\S+)$", self.log.read_text(), re.MULTILINE)
            if found:
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def ask(self, path, method="GET", body=None, headers=None, timeout=30) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def upload(self, parts, names=None, headers=None) -> Answer:
        body, kind = form(parts, names)
        return self.ask("/api/jobs", "POST", body, {"Content-Type": kind, **(headers or {})})

    def job(self, job_id) -> dict:
        return self.ask(f"/api/jobs/{job_id}").json

    def wait(self, job_id, *states, seconds=60) -> dict:
        states = states or OVER
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job = self.job(job_id)
            if job["state"] in states:
                return job
            time.sleep(0.05)
        raise AssertionError(f"it is still {job}: {self.log.read_text()}")

    def workers(self) -> list[int]:
        """Processes that it started, but for the one that keeps track of resources."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found += (task / "children").read_text().split()
        return sorted(
            pid
            for pid in {int(pid) for pid in [*pids, *found]}
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
        )

    def end(self, how=signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(20)


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Start servers that end with the tests."""
    servers = []

    def start(*words, **options):
        servers.append(Server(*words, log=tmp_path_factory.mktemp("log") / "log", **options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="session")
def server(start, model, kept):
    return start("serve", model, "--out", kept, "--device", "cpu", "--upload-mb", 8)


@pytest.fixture(scope="session")
def done(server, scan):
    """A job that is done; nobody deletes it."""
    job = server.upload(scan).json
    return server.wait(job["id"], "done", "failed")


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made_results(model, make_scan, tmp_path_factory):
    """Two scans as `anofpdm segment` leaves them: one in a folder of its own, one with BIDS names."""
    import anofpdm
    from anofpdm.segment.outputs import bids_suffix

    folder = tmp_path_factory.mktemp("results")
    loaded = anofpdm.load(model, "cpu")
    loaded.segment(make_scan(1)).save(folder / "p1")
    name = "sub-07_ses-1"
    in_bids = folder / "sub-07" / "ses-1" / "anat"
    loaded.segment(make_scan(2)).save(in_bids, lambda file: name + bids_suffix(file), title=name)
    return folder


@pytest.fixture(scope="session")
def viewing(start, made_results):
    return start("view", made_results)
