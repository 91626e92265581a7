"""Many at once: a server with fifty clients, of whom many are slow or broken, and a cohort with eight readers."""

import contextlib
import hashlib
import http.client
import json
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from commands import Running, record, succeed, waited, workers
from load_clients import CROWD, OVER, Client, OwnScan, keep_on, own_scan
from no_network import NoNetwork

from tests import toys

BUNDLED = Path(__file__).parents[1] / "src" / "anofpdm" / "models" / "tumour"
MODALITIES = ("flair", "t1", "t1ce", "t2")
SHAPE = (32, 36, 5)
SECONDS = 120
WARM = 30  # seconds after which memory must be flat
GROWTH = 1.05  # last third to first third, medians
LEVELS = 3
READERS = 8
DONE_BY_THEM = ("cut off in an upload", "garbage", "no form", "wrong length", "vanished", "fell silent")
DONE_BY_THEM += ("dribbled", "read slowly", "curious", "scans failed", "scans done")


# ---- a model that is quick, and scans that are told apart ------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with few noise levels; every slice is called unhealthy, so that there is a mask to compare."""
    from anofpdm.calibration.files import from_json, to_json

    folder = tmp_path_factory.mktemp("quick") / "tumour"
    shutil.copytree(BUNDLED, folder)
    path = folder / "calibration.json"
    found = from_json(path.read_text(), str(path))
    fitted = [replace(one, curve=_shortened(one.curve), healthy_threshold=1e-3) for one in found.fitted]
    settings = replace(found.settings, levels=found.settings.levels[:LEVELS])
    path.write_text(to_json(replace(found, settings=settings, fitted=tuple(fitted), detector="cosine", cut=2.0)))
    return folder


def _shortened(curve):
    return replace(curve, **{name: getattr(curve, name)[:LEVELS] for name in ("centre", "scale", "weights")})


@pytest.fixture(scope="module")
def own_scans(quick: Path, tmp_path_factory: pytest.TempPathFactory) -> list[OwnScan]:
    """One for each client, with what the command line makes of it."""
    folder = tmp_path_factory.mktemp("own")
    affine = toys.affine_of("LPS", (1, 1, 4), shape=SHAPE)
    names = [f"client{number:02d}" for number in range(sum(CROWD.values()))]
    for number, name in enumerate(names):
        for channel, modality in enumerate(MODALITIES):
            voxels = toys.head(SHAPE, 10 * number + channel, affine)
            toys.save(folder / "scans" / name / f"{name}_{modality}.nii.gz", voxels, affine)
    words = ("--engine", "diffusion", "--device", "cpu", "--no-pictures", "--no-report")
    succeed("segment", quick, folder / "scans", "--out", folder / "right", *words, within=600)
    found = [own_scan(folder / "scans" / name, folder / "right" / name, MODALITIES) for name in names]
    for role in ("mask", "map"):
        assert len({one.right[role] for one in found}) == len(found), f"no two may have the same {role}"
    return found


# ---- the server ------------------------------------------------------------------------------------------------------


@dataclass
class Watch:
    """A server, and its memory each second."""

    server: Running
    port: int
    samples: list[tuple[int, int]] = field(default_factory=list)  # KiB of the server and of its worker
    _end: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> None:
        while not self._end.wait(1.0):
            theirs = [resident(pid) for pid in workers(self.server)]
            self.samples.append((resident(self.server.process.pid), max(theirs, default=0)))

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.server.process.pid}/fd").iterdir()))

    def end(self) -> None:
        self._end.set()


def resident(pid: int) -> int:
    """KiB; nothing for a process that has just ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def thirds(samples: list[int]) -> tuple[float, float]:
    """Medians of the first and the last, in MiB, once warm; a worker that is just being replaced is not counted."""
    warm = [one for one in samples[WARM:] if one]
    third = len(warm) // 3
    return statistics.median(warm[:third]) / 1024, statistics.median(warm[-third:]) / 1024


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    """It listens before its model is there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.suppress(OSError), contextlib.closing(connection):
        connection.request("GET", "/api/status")
        return connection.getresponse().status == 200
    return False


@pytest.fixture
def watch(quick: Path, space: Path) -> Iterator[Watch]:
    port = free_port()
    nowhere = NoNetwork(space / "nowhere")
    words = ("--out", space / "kept", "--port", str(port), "--engine", "diffusion", "--device", "cpu")
    server = Running("serve", quick, *words, **nowhere.environment)
    try:
        assert waited(lambda: server.over or answers(port), every=0.1), server.kill()
        assert not server.over, server.wait()
        yield Watch(server, port)
        assert not nowhere.attempts, "to reach the network"
    finally:
        if not server.over:
            server.kill()


def crowd(watch: Watch, own_scans: list[OwnScan], chance: random.Random) -> list[Client]:
    """All of them at once, until time is up."""
    until = time.monotonic() + SECONDS
    behaviours = [behaviour for behaviour, count in CROWD.items() for _ in range(count)]
    clients = [Client(watch.port, scan, random.Random(chance.random()), until) for scan in own_scans]
    threads = [
        threading.Thread(target=keep_on, args=both, daemon=True) for both in zip(clients, behaviours, strict=True)
    ]
    sampler = threading.Thread(target=watch.sample, daemon=True)
    for thread in (sampler, *threads):
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 300)
        assert not thread.is_alive(), "a client waits for ever"
    watch.end()
    sampler.join()
    return clients


def settle(clients: list[Client]) -> None:
    """Every scan that was accepted and not deleted comes to its end, and to the right one."""
    for client in clients:
        client.until = time.monotonic() + 300
        for job in set(client.accepted) - client.deleted:
            assert client.wait(job), f"{client.kind}: {job[:6]} was accepted, and is never over"
            client.check(job)


def test_fifty_clients_for_two_minutes(watch: Watch, own_scans: list[OwnScan], space: Path, chance) -> None:
    assert len(own_scans) == 50
    files_before = watch.open_files()
    clients = crowd(watch, own_scans, chance)
    assert not watch.server.over, watch.server.wait()

    asked = time.monotonic()
    assert clients[0].ask("/api/status").status == 200
    answered = time.monotonic() - asked
    settle(clients)
    counts = sum((client.counts for client in clients), Counter())
    wrong = Counter(said for client in clients for said in client.wrong)
    assert not wrong, f"{wrong}\n{counts}"
    accepted = sum(len(client.accepted) for client in clients)
    assert sum(number for name, number in counts.items() if name.startswith("scans")) == accepted
    assert counts["results compared"] >= 10, counts
    would_notice(clients)
    for kind in DONE_BY_THEM:
        assert counts[kind], f"nobody did this: {kind}"

    assert waited(lambda: watch.open_files() <= files_before + 5, 60, 0.5), "files or connections are left open"
    assert waited(lambda: not left_over(space / "kept"), 60, 0.5), left_over(space / "kept")
    told = flat_memory(watch)
    jobs = stopped(watch, space / "kept")
    assert jobs >= accepted - sum(len(client.deleted) for client in clients)
    assert answered < 10, "not alive as it should be"
    tell(counts, accepted, told, answered)


def would_notice(clients: list[Client]) -> None:
    """That nobody complained means something: with another's scan in mind, the same look at the same result fails."""
    client = next(client for client in clients if set(client.accepted) - client.deleted)
    job = next(iter(set(client.accepted) - client.deleted))
    other = replace(client, scan=clients[-1].scan, counts=Counter(), wrong=[])
    other.check(job)
    assert len(other.wrong) == 4, other.wrong  # hashes, mask, map, scan


def left_over(kept: Path) -> list[Path]:
    return [path for name in ("incoming", "trash") for path in (kept / name).iterdir()]


def flat_memory(watch: Watch) -> dict[str, tuple[float, float]]:
    told = {"server": thirds([one for one, _ in watch.samples]), "worker": thirds([one for _, one in watch.samples])}
    print(f"MiB of memory each second, server and worker: {[(a // 1024, b // 1024) for a, b in watch.samples]}")
    for name, (first, last) in told.items():
        assert last <= GROWTH * first, f"memory of the {name} grew from {first:.0f} to {last:.0f} MiB"
    return told


def stopped(watch: Watch, kept: Path) -> int:
    """By Ctrl-C; how many scans lie there, all of them over: also those of clients who did not hear that they were."""
    assert waited(lambda: set(states(kept)) <= set(OVER), 300, 0.5), Counter(states(kept))
    watch.server.send(signal.SIGINT)
    ended = watch.server.wait(60)
    assert ended.code == 130, ended
    assert "anofpdm: stopped" in ended.err + ended.out, ended
    assert watch.server.alone()
    for bad in ("Traceback", "stumbled", "Error", "Exception"):
        assert bad not in ended.err + ended.out, ended
    assert set(states(kept)) <= set(OVER), Counter(states(kept))
    return len(states(kept))


def states(kept: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in (kept / "jobs").glob("*/job.json")]


def tell(counts: Counter[str], accepted: int, told: dict[str, tuple[float, float]], answered: float) -> None:
    answers = sum(number for name, number in counts.items() if name.startswith("answers"))
    ends = ", ".join(f"{number} {name.removeprefix('scans ')}" for name, number in counts.items() if "scans" in name)
    record(
        "clients of one server, 2 minutes", 50, f"{answers} answers, {counts['answers 503']} of them 'full, come back'"
    )
    record("scans accepted", accepted, f"all over: {ends}")
    record("results compared with the right one", counts["results compared"], "to the byte: none was another's")
    for name, (first, last) in told.items():
        record(f"memory of the {name}, MiB", round(last), f"median of the last third; of the first: {first:.0f}")
    record("milliseconds for an answer at the end", round(1000 * answered))


# ---- the prepared store ----------------------------------------------------------------------------------------------

READER = """
import hashlib, sys
import numpy as np
from anofpdm.cohorts import open_cohort

order = np.random.default_rng(int(sys.argv[2]))
cohort = open_cohort(sys.argv[1])
digests = [""] * len(cohort)
for turn in range(3):
    for rows in np.array_split(order.permutation(len(cohort)), 50):
        for row, pixels in zip(rows, cohort.slices[rows]):
            digests[row] = hashlib.sha256(pixels.tobytes()).hexdigest()
tables = [cohort.labels, cohort.scans, cohort.patients, cohort.splits, cohort.indices]
print(hashlib.sha256(repr([digests, *[table.tolist() for table in tables]]).encode()).hexdigest())
"""


def test_eight_readers_of_one_cohort(many_scans: Path, space: Path) -> None:
    """Each in an order of its own, all at once; what they read is what lies there."""
    succeed("prepare", "brats21", many_scans, space / "cohort", "--size", "32", "--workers", "1")
    words = [sys.executable, "-c", READER, str(space / "cohort")]
    readers = [
        subprocess.Popen([*words, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(READERS)
    ]
    ended = [reader.communicate(timeout=300) for reader in readers]
    assert [err for _, err in ended] == READERS * [""]
    assert {out.strip() for out, _ in ended} == {_digest_of(space / "cohort")}
    record("readers of one cohort at once", READERS, "all read the same bytes, three times over, each in its own order")


def _digest_of(cohort: Path) -> str:
    """Without our own code: plain numpy and csv."""
    import csv

    slices = np.load(cohort / "slices.npy", allow_pickle=False)
    scans = {row["scan"]: row["patient"] for row in csv.DictReader((cohort / "scans.csv").open())}
    split = {row["patient"]: row["split"] for row in csv.DictReader((cohort / "split.csv").open())}
    rows = list(csv.DictReader((cohort / "slices.csv").open()))
    names = [row["scan"] for row in rows]
    tables = [
        [["healthy", "unhealthy", "unlabelled"].index(row["label"]) for row in rows],
        names,
        [scans[name] for name in names],
        [split[scans[name]] for name in names],
        [int(row["slice"]) for row in rows],
    ]
    digests = [hashlib.sha256(one.tobytes()).hexdigest() for one in slices]
    return hashlib.sha256(repr([digests, *tables]).encode()).hexdigest()
