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
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests import toys

SHAPE = (32, 36, 14)
HELD_SERVER = str(Path(__file__).with_name("held_server.py"))
FINISHED = ("done", "failed", "cancelled")


# ---- models and scans ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Segments a scan quickly."""
    return add_calibration(save_untrained(tmp_path_factory.mktemp("untrained") / "model"))


def save_untrained(folder: Path) -> Path:
    import torch

    from anofpdm.network import checkpoint
    from anofpdm.network.config import preset
    from anofpdm.network.unet import UNet

    torch.manual_seed(0)
    network = UNet(preset("tiny", 2, channels=8, multipliers=(1, 2, 2), attention=(4,)))
    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    config = {"format": checkpoint.FORMAT, "task": "guided", "modalities": ["flair", "t2"], "size": 32, "step": 0}
    folder.mkdir(parents=True)
    checkpoint.save_model(folder, network.state_dict(), {**config, "network": {**network.config.__dict__}})
    return folder


def add_calibration(folder: Path, levels: int = 3) -> Path:
    """Every slice is classified as unhealthy, so that there is a lesion to show."""
    import torch

    from anofpdm.calibration.calibration_file import to_json
    from anofpdm.method.calibration import CONTEXT_MM, Calibration, ContextFit
    from anofpdm.method.detection import Accuracy, CurveDetector
    from anofpdm.method.evidence import EvidenceSettings
    from anofpdm.network.predictor import load_trained

    trained = load_trained(folder, torch.device("cpu"))
    accuracy = Accuracy(1.0, 1.0)
    detector = CurveDetector(np.full(levels, -10.0), np.ones(levels), np.zeros(levels), 1.0, 1.0)
    calibration = Calibration(
        settings=EvidenceSettings(tuple(range(0, 10 * levels, 10)), (0,)), strength=1.0, best_strength=1.0, cut=2.0,
        divergence_max=0.1, detector="cosine", cosine_accuracy=accuracy, candidates=(), accuracy_ratio=0.98,
        n_healthy=1, n_unhealthy=1, n_patients=2, modalities=("flair", "t2"), checkpoint_sha256=trained.sha256,
        fitted=tuple(ContextFit(mm, detector, accuracy, 0.001) for mm in (0.0, CONTEXT_MM)),
    )  # fmt: skip
    (folder / "calibration.json").write_text(to_json(calibration))
    return folder


def scan_files(folder: Path, seed: int = 0, shape=SHAPE) -> dict[str, Path]:
    """FLAIR and T2 of a small synthetic head, different for each seed."""
    affine = toys.affine_of("LPS", (4, 4, 8), shape=shape)
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


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

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
        program = [HELD_SERVER] if held_by else ["-m", "anofpdm"]
        command = [sys.executable, *program, *map(str, arguments), "--port", "0"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **(held_by.env if held_by else {}), **(env or {})}
        self.process = subprocess.Popen(
            command, stdout=log.open("w"), stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        self.address = self._wait_for_address()
        self.port = urlsplit(self.address).port

    def _wait_for_address(self) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            found = re.search(r"^open (\S+)$", self.log.read_text(), re.MULTILINE)
            if found:
                return found[1]
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

    def wait(self, job_id, *states, seconds=60) -> dict:
        states = states or FINISHED
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job = self.job(job_id)
            if job["state"] in states:
                return job
            time.sleep(0.05)
        raise AssertionError(f"the job is still {job}: {self.log.read_text()}")

    def workers(self) -> list[int]:
        """Its child processes, without the resource tracker of multiprocessing."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found += (task / "children").read_text().split()
        return sorted(
            pid
            for pid in {int(pid) for pid in [*pids, *found]}
            if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
        )

    def stop(self, how=signal.SIGINT) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(20)


class Hold:
    """Lets a server hold every scan in the middle (held_server.py); with a result, the model is not loaded."""

    def __init__(self, file: Path, result: Path | None = None):
        self._file = file
        self.env = {"HOLD_SCANS": str(file)} | ({"HELD_RESULT": str(result)} if result else {})

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
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def make_hold(tmp_path_factory):
    """Closed at first."""

    def make(result=None):
        hold = Hold(tmp_path_factory.mktemp("hold") / "hold", result)
        hold.close()
        return hold

    return make


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def server(start, model, store_folder):
    return start("serve", model, "--out", store_folder, "--device", "cpu", "--upload-mb", 8)


@pytest.fixture(scope="session")
def done_job(server, scan):
    """A finished job that no test deletes."""
    job = server.upload(scan).json
    return server.wait(job["id"], "done", "failed")


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def results_folder(model, make_scan, tmp_path_factory):
    """Results of two scans: one in its own folder, one with BIDS names."""
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
def view_server(start, results_folder):
    return start("view", results_folder)
