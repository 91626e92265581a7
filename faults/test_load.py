"""A server with fifty clients, many of them slow or faulty, and a cohort with eight readers."""

import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from faults.extent import Extent
from faults.load.behaviours import CLIENTS, EVENTS, repeat
from faults.load.client import FINAL, Client, OwnScan, own_scan
from faults.load.server import Server, free_port, job_states, leftovers
from faults.processes import RunningCommand, run_successfully, wait_until
from faults.summary import LOAD
from faults.supply_chain.no_network import NoNetwork
from tests import toys

MODEL, MODALITIES = "phantom-tumour", ("flair", "t2")
SHAPE = (32, 36, 5)
MAX_GROWTH = 1.05  # of memory, last third to first third
READERS = 8


# ---- scans with different results ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_scans(extent: Extent, tmp_path_factory: pytest.TempPathFactory) -> list[OwnScan]:
    """One for each client, with the result of the command line."""
    folder = tmp_path_factory.mktemp("own")
    affine = toys.affine_of("LPS", (5, 5, 25), shape=SHAPE)
    names = [f"client{number:02d}" for number in range(len(behaviours(extent)))]
    for number, name in enumerate(names):
        for channel, modality in enumerate(MODALITIES):
            voxels = toys.head(SHAPE, 10 * number + channel, affine)
            toys.save(folder / "scans" / name / f"{name}_{modality}.nii.gz", voxels, affine)
    options = ("--device", "cpu", "--no-pictures", "--no-report")
    run_successfully("segment", MODEL, folder / "scans", "--out", folder / "results", *options, timeout=600)
    scans = [own_scan(folder / "scans" / name, folder / "results" / name, MODALITIES) for name in names]
    different = {role: len({scan.expected[role] for scan in scans}) for role in ("mask", "map")}
    assert different["map"] == len(scans), "two scans have the same map: results could be mixed up unseen"
    assert different["mask"] > 0.9 * len(scans), "too many equal masks; a student finds nothing in a few scans"
    return scans


def behaviours(extent: Extent) -> list:
    return [behaviour for behaviour, count in CLIENTS.items() for _ in range(min(count, extent.clients))]


# ---- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(workspace: Path) -> Iterator[Server]:
    port = free_port()
    no_network = NoNetwork(workspace / "no_network")
    options = ("--out", workspace / "kept", "--port", str(port), "--device", "cpu")
    server = Server(RunningCommand("serve", MODEL, *options, **no_network.environment), port)
    try:
        assert wait_until(lambda: server.command.ended or server.responds(), interval=0.1), server.command.kill()
        assert not server.command.ended, server.command.wait()
        yield server
        assert not no_network.attempts, "the server tried to reach the network"
    finally:
        if not server.command.ended:
            server.command.kill()


def test_many_clients(
    server: Server, own_scans: list[OwnScan], workspace: Path, rng: random.Random, extent: Extent, record
) -> None:
    open_files = server.open_files()
    clients = run_clients(server, own_scans, rng, extent)
    assert not server.command.ended, server.command.wait()

    start = time.monotonic()
    assert clients[0].request("/api/status").status == 200
    latency = time.monotonic() - start
    wait_and_check(clients)
    counts = sum((client.counts for client in clients), Counter())
    errors = Counter(error for client in clients for error in client.errors)
    assert not errors, f"{errors}\n{counts}"
    accepted = sum(len(client.accepted) for client in clients)
    assert sum(number for name, number in counts.items() if name.startswith("scans")) == accepted
    assert counts["results compared"] >= (10 if extent.measured else 1), counts
    check_sensitivity(clients)
    for event in EVENTS if extent.measured else ():
        assert counts[event], f"this did not happen: {event}"

    assert wait_until(lambda: server.open_files() <= open_files + 5, 60, 0.5), "files or connections are left open"
    assert wait_until(lambda: not leftovers(workspace / "kept"), 60, 0.5), leftovers(workspace / "kept")
    jobs = stop_and_count(server, workspace / "kept")
    assert jobs >= accepted - sum(len(client.deleted) for client in clients)
    assert latency < 10, "slow to respond"
    record_load(record, counts, accepted, len(clients))
    record(LOAD, "milliseconds for a response at the end", round(1000 * latency), "")
    if extent.measured:
        check_memory(record, server)


def run_clients(server: Server, own_scans: list[OwnScan], rng: random.Random, extent: Extent) -> list[Client]:
    """All at once, until the time is up."""
    deadline = time.monotonic() + extent.load_seconds
    clients = [Client(server.port, scan, random.Random(rng.random()), deadline) for scan in own_scans]
    pairs = zip(clients, behaviours(extent), strict=True)
    threads = [threading.Thread(target=repeat, args=pair, daemon=True) for pair in pairs]
    sampler = threading.Thread(target=server.sample_memory, daemon=True)
    for thread in (sampler, *threads):
        thread.start()
    for thread in threads:
        thread.join(extent.load_seconds + 300)
        assert not thread.is_alive(), "a client waits forever"
    server.stop_sampling()
    sampler.join()
    return clients


def wait_and_check(clients: list[Client]) -> None:
    """Every job that was accepted and not deleted ends in its expected state."""
    for client in clients:
        client.deadline = time.monotonic() + 300
        for job in set(client.accepted) - client.deleted:
            assert client.wait(job), f"{client.kind}: job {job[:6]} was accepted and never ends"
            client.check(job)


def check_sensitivity(clients: list[Client]) -> None:
    """The same checks fail for a client that expects the result of another scan."""
    pairs = [(client, job) for client in clients for job in set(client.accepted) - client.deleted]
    client, job = next((client, job) for client, job in pairs if client.accepted[job] == "done")
    other = next(other for other in clients if other is not client)
    other = replace(client, scan=other.scan, counts=Counter(), errors=[])
    other.check(job)
    assert len(other.errors) == 4, other.errors  # hashes, mask, map, scan


def check_memory(record, server: Server) -> None:
    print(f"MiB of server and worker, each second: {[(a // 1024, b // 1024) for a, b in server.samples]}")
    for name, (first, last) in server.memory().items():
        assert last <= MAX_GROWTH * first, f"memory of the {name} grew from {first:.0f} to {last:.0f} MiB"
        record(LOAD, f"memory of the {name}, MiB", round(last), f"median of the last third; of the first: {first:.0f}")


def stop_and_count(server: Server, folder: Path) -> int:
    """Stop with Ctrl-C. The number of jobs, all in a final state, including those of clients that have disappeared."""
    assert wait_until(lambda: set(job_states(folder)) <= set(FINAL), 300, 0.5), Counter(job_states(folder))
    server.command.send(signal.SIGINT)
    outcome = server.command.wait()
    assert outcome.code == 130, outcome
    assert "anofpdm: stopped" in outcome.err + outcome.out, outcome
    assert server.command.group_ended()
    for word in ("Traceback", "stumbled", "Error", "Exception"):
        assert word not in outcome.err + outcome.out, outcome
    states = job_states(folder)
    assert set(states) <= set(FINAL), Counter(states)
    return len(states)


def record_load(record, counts: Counter[str], accepted: int, clients: int) -> None:
    responses = sum(number for name, number in counts.items() if name.startswith("responses"))
    states = ", ".join(f"{number} {name.removeprefix('scans ')}" for name, number in counts.items() if "scans" in name)
    busy = counts["responses 503"]
    record(LOAD, "clients at once", clients, f"{responses:,} responses, {busy:,} of them 'queue full'")
    record(LOAD, "scans accepted", accepted, f"all ended: {states}")
    record(LOAD, "results compared", counts["results compared"], "byte by byte; all those of the right scan")


# ---- the cohort ------------------------------------------------------------------------------------------------------

READER = """
import hashlib, sys
import numpy as np
from anofpdm.cohorts import open_cohort

order = np.random.default_rng(int(sys.argv[2]))
cohort = open_cohort(sys.argv[1])
digests = [""] * len(cohort)
for _ in range(3):
    for rows in np.array_split(order.permutation(len(cohort)), 50):
        for row, pixels in zip(rows, cohort.slices[rows]):
            digests[row] = hashlib.sha256(pixels.tobytes()).hexdigest()
tables = [cohort.labels, cohort.scans, cohort.patients, cohort.splits, cohort.indices]
print(hashlib.sha256(repr([digests, *[table.tolist() for table in tables]]).encode()).hexdigest())
"""


def test_eight_readers_of_one_cohort(many_scans: Path, workspace: Path, record) -> None:
    """At once, each in its own random order: they read the same as one alone."""
    cohort = workspace / "cohort"
    run_successfully("prepare", "brats21", many_scans, cohort, "--size", "32", "--workers", "1")
    program = (sys.executable, "-c", READER, cohort)
    alone = RunningCommand("0", program=program).wait()
    readers = [RunningCommand(str(seed), program=program) for seed in range(READERS)]
    outcomes = [alone, *(reader.wait() for reader in readers)]
    assert [outcome.err for outcome in outcomes] == (READERS + 1) * [""]
    assert len({outcome.out for outcome in outcomes}) == 1
    record(
        LOAD, "readers of one cohort at once", READERS, "all read the same bytes, three times, each in its own order"
    )
