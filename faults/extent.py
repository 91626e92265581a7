"""How much of each part is run: the full suite (`make faults`) or a short sample (`make faults-sample`)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Extent:
    stops: int  # per command and signal
    disk_shares: tuple[float, ...]  # disk sizes, as shares of the space that a complete run needs
    worker_kills: int  # per command
    fuzz_seconds: int  # per reader
    clients: int  # per behaviour, at most
    load_seconds: int
    patients: tuple[int, int]  # of the small and of the large cohort
    measured: bool  # long enough that speed and memory can be judged, too


FULL = Extent(
    stops=12,
    disk_shares=(0.02, 0.9),
    worker_kills=5,
    fuzz_seconds=37,
    clients=50,
    load_seconds=120,
    patients=(125, 1254),
    measured=True,
)
SAMPLE = Extent(
    stops=1,
    disk_shares=(0.9,),
    worker_kills=1,
    fuzz_seconds=3,
    clients=1,
    load_seconds=12,
    patients=(12, 60),
    measured=False,
)
