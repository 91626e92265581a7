"""A running server, and its memory over time."""

import contextlib
import http.client
import json
import socket
import statistics
import threading
from dataclasses import dataclass, field
from pathlib import Path

from faults.processes import RunningCommand, worker_pids

WARM_UP = 30  # seconds after which memory must not grow


@dataclass
class Server:
    command: RunningCommand
    port: int
    samples: list[tuple[int, int]] = field(default_factory=list)  # KiB of the server and of its worker, each second
    _stop: threading.Event = field(default_factory=threading.Event)

    def sample_memory(self) -> None:
        while not self._stop.wait(1.0):
            workers = [resident(pid) for pid in worker_pids(self.command)]
            self.samples.append((resident(self.command.pid), max(workers, default=0)))

    def stop_sampling(self) -> None:
        self._stop.set()

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.command.pid}/fd").iterdir()))

    def memory(self) -> dict[str, tuple[float, float]]:
        """MiB in the first and in the last third of the time, medians."""
        server, worker = zip(*self.samples, strict=True)
        return {"server": _thirds(server), "worker": _thirds(worker)}

    def responds(self) -> bool:
        """Before its model is loaded, it accepts connections and does not respond."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.suppress(OSError), contextlib.closing(connection):
            connection.request("GET", "/api/status")
            return connection.getresponse().status == 200
        return False


def resident(pid: int) -> int:
    """KiB; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def _thirds(samples: tuple[int, ...]) -> tuple[float, float]:
    """After the warm-up, and without the moments in which a worker is being replaced."""
    warm = [sample for sample in samples[WARM_UP:] if sample]
    third = len(warm) // 3
    return statistics.median(warm[:third]) / 1024, statistics.median(warm[-third:]) / 1024


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def job_states(folder: Path) -> list[str]:
    return [json.loads(path.read_text())["state"] for path in (folder / "jobs").glob("*/job.json")]


def leftovers(folder: Path) -> list[Path]:
    return [path for name in ("incoming", "trash") for path in (folder / name).iterdir()]
