"""A server with fifty clients, many of them slow or faulty."""

import json
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from faults.extent import Extent
from faults.load_clients import CLIENTS, Client, OwnScan, repeat
from faults.no_network import NoNetwork
from faults.processes import group_members, memory_kib, run_successfully, wait_until, worker_pids
from tests import toys
from tests.viewer.servers import FINISHED, Server

MODEL, MODALITIES = "phantom-tumour", ("flair", "t2")
FILES = {"mask": "mask.nii.gz", "map": "anomaly_map.nii.gz"}
SHAPE = (32, 36, 5)
MAX_GROWTH = 1.05  # of memory, last third to first third
WARM_UP = 30  # seconds after which memory must not grow


@pytest.fixture
def own_scans(extent, workspace):
    """One for each client, with the result of the command line."""
    affine = toys.affine_of("LPS", (5, 5, 25), shape=SHAPE)
    names = [f"client{number:02d}" for number in range(len(behaviours(extent)))]
    for number, name in enumerate(names):
        place_mm = np.random.default_rng(number).uniform(-35, 35, 3)
        lesion = toys.ball(affine, SHAPE, tuple(place_mm), 25)
        for channel, modality in enumerate(MODALITIES):
            voxels = np.where(lesion, 1400, toys.head(SHAPE, 10 * number + channel, affine)).astype(np.int16)
            toys.save(workspace / "scans" / name / f"{name}_{modality}.nii.gz", voxels, affine)
    options = ("--device", "cpu", "--no-pictures", "--no-report")
    run_successfully("segment", MODEL, workspace / "scans", "--out", workspace / "out", *options, timeout=600)
    scans = []
    for name in names:
        files = {m: (workspace / "scans" / name / f"{name}_{m}.nii.gz").read_bytes() for m in MODALITIES}
        expected = {role: (workspace / "out" / name / file).read_bytes() for role, file in FILES.items()}
        scans.append(OwnScan(files, expected))
    different = {role: len({scan.expected[role] for scan in scans}) for role in FILES}
    assert different["map"] == len(scans), "two scans have the same map: results could be mixed up unseen"
    assert different["mask"] > 0.9 * len(scans), "too many equal masks; a student finds nothing in a few scans"
    return scans


def behaviours(extent: Extent) -> list[Callable[[Client], None]]:
    return [behaviour for behaviour, count in CLIENTS.items() for _ in range(min(count, extent.clients))]


@pytest.fixture
def server(workspace):
    no_network = NoNetwork(workspace / "no_network")
    arguments = ("serve", MODEL, "--out", workspace / "kept", "--device", "cpu")
    server = Server(*arguments, log=workspace / "log", env=no_network.environment)
    yield server
    server.stop(signal.SIGKILL)
    assert not no_network.attempts, "the server tried to reach the network"


def test_many_clients(server, own_scans, workspace, rng, extent, record_property):
    kept, files_before = workspace / "kept", open_files(server)
    clients, samples = run_clients(server, own_scans, rng, extent)
    start = time.monotonic()
    assert clients[0].request("/api/status").status == 200
    assert time.monotonic() - start < 10, "slow to respond"
    wait_and_check(clients)
    counts = sum((client.counts for client in clients), Counter())
    errors = Counter(error for client in clients for error in client.errors)
    assert not errors, f"{errors}\n{counts}"
    assert all(counts[behaviour.__name__] for behaviour in CLIENTS) or not extent.measured, counts
    assert wait_until(lambda: open_files(server) <= files_before + 5, 60, 0.5), "files or connections are left open"
    assert wait_until(lambda: not leftovers(kept), 60, 0.5), leftovers(kept)
    accepted, deleted = (sum(len(getattr(client, name)) for client in clients) for name in ("accepted", "deleted"))
    assert stop_and_count(server, kept) >= accepted - deleted
    record_property("scans accepted; all ended", accepted)
    record_property("results compared, byte by byte", counts["results compared"])
    if extent.measured:
        for name, memory in samples.items():
            first, last = thirds(memory)
            record_property(f"MiB that the {name} grew", last - first)
            assert last <= MAX_GROWTH * first, f"memory of the {name} grew from {first:.0f} to {last:.0f} MiB"


def run_clients(
    server: Server, own_scans: list[OwnScan], rng: random.Random, extent: Extent
) -> tuple[list[Client], dict[str, list[int]]]:
    """All at once, until the time is up. With the memory of the server and of its worker, each second."""
    deadline = time.monotonic() + extent.load_seconds
    clients = [Client(server, scan, random.Random(rng.random()), deadline) for scan in own_scans]
    pairs = zip(clients, behaviours(extent), strict=True)
    threads = [threading.Thread(target=repeat, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    samples: dict[str, list[int]] = {"server": [], "worker": []}
    while time.monotonic() < deadline:
        time.sleep(1.0)
        samples["server"].append(memory_kib(server.pid, "VmRSS"))
        samples["worker"].append(max((memory_kib(pid, "VmRSS") for pid in worker_pids(server)), default=0))
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a client waits forever"
    return clients, samples


def wait_and_check(clients: list[Client]) -> None:
    """Every job that was accepted and not deleted ends in its expected state."""
    for client in clients:
        client.deadline = time.monotonic() + 300
        for job in set(client.accepted) - client.deleted:
            assert client.wait(job), f"job {job[:6]} was accepted and never ends"
            client.check(job)


def stop_and_count(server: Server, folder: Path) -> int:
    """Stop with Ctrl-C. The number of jobs, all in a final state, including those of clients that have disappeared."""
    assert wait_until(lambda: set(job_states(folder)) <= set(FINISHED), 300, 0.5), Counter(job_states(folder))
    assert server.stop() == 130
    log = server.log.read_text()
    assert "anofpdm: stopped" in log
    assert not [word for word in ("Traceback", "Error", "Exception") if word in log], log
    assert wait_until(lambda: not group_members(server.pid), 30)
    return len(job_states(folder))


# ---- measurements ----------------------------------------------------------------------------------------------------


def open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def thirds(samples: list[int]) -> tuple[float, float]:
    """MiB, medians of the first and of the last third after the warm-up, while there is a worker."""
    warm = [sample for sample in samples[WARM_UP:] if sample]
    third = len(warm) // 3
    return statistics.median(warm[:third]) / 1024, statistics.median(warm[-third:]) / 1024


def job_states(folder: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in (folder / "jobs").glob("*/job.json")]


def leftovers(folder: Path) -> list[Path]:
    return [path for name in ("incoming", "trash") for path in (folder / name).iterdir()]
