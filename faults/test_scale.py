"""Cohorts of up to the size of BraTS21: time grows with the number of patients, memory does not."""

import contextlib
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from faults.extent import FULL, Extent
from faults.processes import RunningCommand, group_members
from faults.summary import SCALE
from tests import toys

SHAPE, SIZE = (28, 28, 20), 48  # the large cohort takes more disk space than MAX_MEMORY allows memory to grow
MAX_MEMORY = 1.3  # peak of the large cohort to that of the small one
MAX_TIME = 1.4  # seconds per patient, large cohort to small, and late patients to early ones
MAX_SHORT_TIME = 3.0  # the same for times too short to be exact; quadratic growth would give ten
MIB = 1 << 20
SLICES_PER_PATIENT = 100  # of BraTS21


ITERATE = """
import json, sys, time
from pathlib import Path
import numpy as np

def own():  # without pages mapped from the disk, which the system can drop at any time
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

from anofpdm.cohorts import open_cohort
from anofpdm.network.training.batches import SliceOrder, read_ahead

def seconds_to_open():
    before = time.process_time()
    open_cohort(sys.argv[1])
    return time.process_time() - before

opening = min(seconds_to_open() for _ in range(5))
cohort = open_cohort(sys.argv[1])
order, peak, seen = SliceOrder.from_cohort(cohort, "guided", batch=16, balanced=False, seed=0), own(), 0
steps = range(len(order.groups[0]) // 16)
opened = time.process_time()
for step, slices, labels in read_ahead(cohort, order, steps, part=slice(None), pin=False):
    seen += len(labels)
    if step % 16 == 0:
        peak = max(peak, own())
drawn = time.process_time()
for number, rows in enumerate(np.array_split(np.arange(len(cohort)), -(-len(cohort) // 16))):
    assert np.isfinite(cohort.pixels(rows).sum())
    if number % 16 == 0:
        peak = max(peak, own())
done = time.process_time()
times = {"open": opening, "random": drawn - opened, "in_order": done - drawn}
print(json.dumps({"slices": len(cohort), "patients": len(set(cohort.patients)), "seen": seen, "peak": peak, **times}))
"""


@dataclass(frozen=True)
class Measured:
    patients: int
    wall: float  # seconds
    cpu: float  # seconds, of all processes
    peak: float  # MiB, of all processes together
    early: float  # CPU seconds per patient, among the first ones
    late: float  # among the last ones
    read: dict[str, float]  # by ITERATE


ROWS: dict[str, Callable[[Measured], str]] = {
    "patients": lambda cohort: f"{cohort.patients:,}",
    "slices": lambda cohort: f"{int(cohort.read['slices']):,}",
    "`anofpdm prepare`, seconds": lambda cohort: f"{cohort.wall:.1f}",
    "CPU seconds of that": lambda cohort: f"{cohort.cpu:.1f}",
    "peak memory of all its processes, MiB": lambda cohort: f"{cohort.peak:.0f}",
    "opening the cohort, seconds": lambda cohort: f"{cohort.read['open']:.2f}",
    "reading all slices at random, seconds": lambda cohort: f"{cohort.read['random']:.2f}",
    "reading all slices in order, seconds": lambda cohort: f"{cohort.read['in_order']:.2f}",
    "peak memory of that, MiB": lambda cohort: f"{cohort.read['peak'] / 1024:.0f}",
}


# ---- patients --------------------------------------------------------------------------------------------------------


def make_patients(folder: Path, count: int) -> Path:
    """FLAIR, T2 and a mask of each, in the BraTS21 layout; no two are equal."""
    affine = toys.affine_of(shape=SHAPE)
    brain = toys.head(SHAPE, 0, affine)
    lesions = [toys.ball(affine, SHAPE, (3, -2, 1), radius).astype(np.uint8) for radius in (-1, 4)]

    def make(number: int) -> None:
        rng = np.random.default_rng(number)
        place = folder / f"P{number:05d}"
        place.mkdir(parents=True)
        for modality in ("flair", "t2"):
            voxels = np.where(brain > 0, brain + rng.integers(1, 30, SHAPE, dtype=np.int16), 0)
            nib.save(nib.Nifti1Image(voxels, affine), place / f"P{number:05d}_{modality}.nii.gz")
        nib.save(nib.Nifti1Image(lesions[number % 2], affine), place / f"P{number:05d}_seg.nii.gz")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, range(count)))
    return folder


# ---- measurements ----------------------------------------------------------------------------------------------------


def peak_memory(group: int) -> dict[int, int]:
    """KiB, by process of a group."""
    peaks = {}
    for pid in group_members(group):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        peaks[pid] = max((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0)
    return peaks


def cpu_seconds(group: int) -> float:
    """Of the processes of a group that are running."""
    ticks = 0
    for pid in group_members(group):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def count_prepared(cohort: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return max((cohort / "journal.jsonl").read_bytes().count(b"\n") - 1, 0)  # the first line holds the settings
    return 0


def measure(source: Path, patients: int, folder: Path) -> Measured:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    running = RunningCommand("prepare", "brats21", source, folder, "--size", str(SIZE), "--workers", "2")
    peaks: dict[int, int] = {}
    progress: list[tuple[int, float]] = [(0, 0.0)]  # patients, CPU seconds
    while not running.ended:
        for pid, peak in peak_memory(running.pid).items():
            peaks[pid] = max(peak, peaks.get(pid, 0))
        if (prepared := count_prepared(folder)) > progress[-1][0]:
            progress.append((prepared, cpu_seconds(running.pid)))
        time.sleep(0.1)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = running.wait()
    assert outcome.code == 0, outcome
    assert len(peaks) >= 3, "a process and two workers"
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    early, late = _per_patient(progress, 0.1, 0.4), _per_patient(progress, 0.65, 0.95)
    return Measured(patients, wall, cpu, sum(peaks.values()) / 1024, early, late, iterate(folder, patients))


def _per_patient(progress: list[tuple[int, float]], start: float, end: float) -> float:
    """CPU seconds per patient, between two shares of all patients."""
    count, seconds = np.array(progress).T
    first, last = start * count[-1], end * count[-1]
    return float(np.diff(np.interp([first, last], count, seconds))[0] / (last - first))


def iterate(cohort: Path, patients: int) -> dict[str, float]:
    outcome = RunningCommand(program=(sys.executable, "-c", ITERATE, cohort)).wait(300)
    assert outcome.code == 0, outcome
    read = json.loads(outcome.out)
    assert read["patients"] == patients
    assert read["seen"] >= 0.7 * read["slices"], "three quarters are in the training split"
    return read


@pytest.fixture(scope="module")
def measured(extent: Extent, tmp_path_factory: pytest.TempPathFactory) -> tuple[Measured, Measured]:
    cohorts = []
    for patients in extent.patients:
        folder = tmp_path_factory.mktemp(f"patients{patients}")
        source = make_patients(folder / "scans", patients)
        cohorts.append(measure(source, patients, folder / "cohort"))
        shutil.rmtree(folder)
    return cohorts[0], cohorts[1]


def test_memory_does_not_grow(measured: tuple[Measured, Measured], extent: Extent, record) -> None:
    small, large = measured
    for name, text in ROWS.items():
        record(SCALE, name, text(small), text(large))
    stored = large.read["slices"] * 2 * SIZE * SIZE * 2 / MIB
    assert stored > (MAX_MEMORY - 1) * small.peak or not extent.measured, "the cohort is too small for this test"
    assert large.peak <= MAX_MEMORY * small.peak, f"prepare: {small.peak:.0f} and {large.peak:.0f} MiB"
    peaks = small.read["peak"], large.read["peak"]
    assert peaks[1] <= MAX_MEMORY * peaks[0], f"reading: {peaks[0]} and {peaks[1]} KiB"


def test_time_is_linear(measured: tuple[Measured, Measured], extent: Extent) -> None:
    """CPU time, which other processes disturb less, and wall-clock time, which includes the start."""
    small, large = measured
    assert large.cpu / large.patients <= MAX_TIME * small.cpu / small.patients
    assert large.wall / large.patients <= MAX_TIME * small.wall / small.patients
    if not extent.measured:
        return
    assert large.late <= MAX_TIME * large.early, f"CPU seconds per patient: {large.early:.4f}, then {large.late:.4f}"
    for part in ("open", "random", "in_order"):
        each = [cohort.read[part] / cohort.read["slices"] for cohort in (small, large)]
        assert each[1] <= MAX_SHORT_TIME * each[0], f"{part}: {1e6 * each[0]:.0f}, {1e6 * each[1]:.0f} us per slice"


def test_time_to_draw_a_batch_does_not_grow(record) -> None:
    """With as many slices as a real cohort has; here they are indices only."""
    from anofpdm.network.training.batches import SliceOrder

    def seconds(patients: int) -> float:
        order = SliceOrder([np.arange(patients * SLICES_PER_PATIENT)], [16], seed=0)
        order.rows(0)
        start = time.process_time()
        for step in range(1, 201):
            order.rows(step)
        return (time.process_time() - start) / 200

    small, large = (min(seconds(patients) for _ in range(3)) for patients in FULL.patients)
    record(SCALE, "drawing a batch, microseconds", f"{1e6 * small:.0f}", f"{1e6 * large:.0f}")
    assert large <= MAX_SHORT_TIME * small, f"{1e6 * small:.0f} and {1e6 * large:.0f} microseconds"
