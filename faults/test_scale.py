"""As many patients as BraTS21 has: time grows with their number, memory does not."""

import contextlib
import json
import os
import resource
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from commands import Running, members, record

from tests import toys

FEW, MANY = 125, 1254  # patients
SHAPE, SIZE = (28, 28, 20), 48  # what is prepared of all comes to more than the margin of memory
FLAT = 1.3  # peak memory, many to few
LINEAR = 1.4  # time for a patient, many to few, and late ones to early ones
SAME = 3.0  # the same of times too short to be exact; what grows with the square would come to ten
MIB = 1 << 20
SLICES_A_PATIENT = 100  # of BraTS21, that are trained on


ITERATE = """
import json, sys, time
from pathlib import Path
import numpy as np

def own():  # without what is mapped from the disk, which the system takes back when it needs room
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

from anofpdm.cohorts import open_cohort
from anofpdm.network.training.batches import SliceOrder, read_ahead

def opening():
    before = time.process_time()
    open_cohort(sys.argv[1])
    return time.process_time() - before

opening_took = min(opening() for _ in range(5))
cohort = open_cohort(sys.argv[1])
order, peak, seen = SliceOrder.of(cohort, "guided", batch=16, balanced=False, seed=0), own(), 0
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
times = {"open": opening_took, "epoch": drawn - opened, "in_order": done - drawn}
print(json.dumps({"slices": len(cohort), "patients": len(set(cohort.patients)), "seen": seen, "peak": peak, **times}))
"""


@dataclass(frozen=True)
class Measured:
    patients: int
    wall: float  # seconds
    cpu: float  # seconds, of all its processes
    peak: float  # MiB, of all its processes together
    early: float  # CPU seconds for a patient, among those after the first few
    late: float  # and among the last
    read: dict[str, float]

    def __str__(self) -> str:
        read = self.read
        each = f"{1000 * self.early:.1f} ms of it for an early patient, {1000 * self.late:.1f} for a late one"
        prepared = f"prepared in {self.wall:.1f} s (CPU {self.cpu:.1f} s, {each}) and {self.peak:.0f} MiB"
        opened = f"{int(read['slices']):,} slices opened in {read['open']:.2f} s"
        gone_through = f"gone through at random in {read['epoch']:.2f} s, in order in {read['in_order']:.2f} s"
        return f"{prepared}; {opened}, {gone_through}, {read['peak'] / 1024:.0f} MiB"


# ---- patients, cheaply -----------------------------------------------------------------------------------------------


def make_patients(folder: Path, count: int) -> Path:
    """FLAIR, T2 and a mask of each, in the layout of BraTS21; no two alike."""
    affine = toys.affine_of(shape=SHAPE)
    brain = toys.head(SHAPE, 0, affine)
    lesions = [toys.ball(affine, SHAPE, (3, -2, 1), radius).astype(np.uint8) for radius in (-1, 4)]

    def make(number: int) -> None:
        chance = np.random.default_rng(number)
        place = folder / f"P{number:05d}"
        place.mkdir(parents=True)
        for modality in ("flair", "t2"):
            voxels = np.where(brain > 0, brain + chance.integers(1, 30, SHAPE, dtype=np.int16), 0)
            nib.save(nib.Nifti1Image(voxels, affine), place / f"P{number:05d}_{modality}.nii.gz")
        nib.save(nib.Nifti1Image(lesions[number % 2], affine), place / f"P{number:05d}_seg.nii.gz")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, range(count)))
    return folder


# ---- measuring -------------------------------------------------------------------------------------------------------


def peaks(group: int) -> dict[int, int]:
    """The most memory that each process of a group has had, in KiB."""
    found = {}
    for pid in members(group):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        found[pid] = max((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0)
    return found


def cpu_seconds(group: int) -> float:
    """Of those processes of a group that run."""
    ticks = 0
    for pid in members(group):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def prepared_so_far(cohort: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return max((cohort / "journal.jsonl").read_bytes().count(b"\n") - 1, 0)  # its first line is the settings
    return 0


def measure(source: Path, patients: int, folder: Path) -> Measured:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    running = Running("prepare", "brats21", source, folder, "--size", str(SIZE), "--workers", "2")
    most: dict[int, int] = {}
    done: list[tuple[int, float]] = [(0, 0.0)]  # patients and CPU seconds, as it goes on
    while not running.over:
        for pid, peak in peaks(running.process.pid).items():
            most[pid] = max(peak, most.get(pid, 0))
        if (so_far := prepared_so_far(folder)) > done[-1][0]:
            done.append((so_far, cpu_seconds(running.process.pid)))
        time.sleep(0.1)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all that were waited for since
    ended = running.wait()
    assert ended.code == 0, ended
    assert len(most) >= 3, "a process and two workers"
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    early, late = _each(done, 0.1, 0.4), _each(done, 0.65, 0.95)
    return Measured(patients, wall, cpu, sum(most.values()) / 1024, early, late, gone_through(folder, patients))


def _each(done: list[tuple[int, float]], start: float, end: float) -> float:
    """CPU seconds for a patient, between two shares of all of them."""
    count, seconds = np.array(done).T
    first, last = start * count[-1], end * count[-1]
    return float(np.diff(np.interp([first, last], count, seconds))[0] / (last - first))


def gone_through(cohort: Path, patients: int) -> dict[str, float]:
    ended = Running(program=(sys.executable, "-c", ITERATE, cohort)).wait(300)
    assert ended.code == 0, ended
    read = json.loads(ended.out)
    assert read["patients"] == patients
    assert read["seen"] >= 0.7 * read["slices"], "three quarters are trained on"
    return read


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Measured]:
    found = {}
    for patients in (FEW, MANY):
        folder = tmp_path_factory.mktemp(f"patients{patients}")
        source = make_patients(folder / "scans", patients)
        found[patients] = measure(source, patients, folder / "cohort")
        shutil.rmtree(folder)
    for patients, one in found.items():
        record("patients", patients, str(one))
    return found


def test_memory_is_flat(measured: dict[int, Measured]) -> None:
    few, many = measured[FEW], measured[MANY]
    prepared = many.read["slices"] * 2 * SIZE * SIZE * 2 / MIB
    assert prepared > (FLAT - 1) * few.peak, "what lies on the disk could be kept in memory, and nobody would notice"
    assert many.peak <= FLAT * few.peak, f"preparing takes {few.peak:.0f} and {many.peak:.0f} MiB"
    assert many.read["peak"] <= FLAT * few.read["peak"], (
        f"going through takes {few.read['peak']}, {many.read['peak']} KiB"
    )


def test_time_is_linear(measured: dict[int, Measured]) -> None:
    """Of the processor, which others on the machine disturb less; and by the clock, start-up and all."""
    few, many = measured[FEW], measured[MANY]
    assert many.late <= LINEAR * many.early, f"CPU seconds for a patient: {many.early:.4f}, then {many.late:.4f}"
    assert many.cpu / many.patients <= LINEAR * few.cpu / few.patients
    assert many.wall / many.patients <= LINEAR * few.wall / few.patients
    for part in ("open", "epoch", "in_order"):
        each = [one.read[part] / one.read["slices"] for one in (few, many)]
        assert each[1] <= SAME * each[0], f"{part}: {1e6 * each[0]:.0f} and {1e6 * each[1]:.0f} microseconds a slice"


def test_drawing_a_batch_does_not_take_longer_with_more_slices() -> None:
    """As many as a real cohort trains on, which would be gigabytes on the disk: here they are numbers alone."""
    from anofpdm.network.training.batches import SliceOrder

    def seconds(patients: int) -> float:
        order = SliceOrder([np.arange(patients * SLICES_A_PATIENT)], [16], seed=0)
        order.rows(0)
        start = time.process_time()
        for step in range(1, 201):
            order.rows(step)
        return (time.process_time() - start) / 200

    few, many = (min(seconds(patients) for _ in range(3)) for patients in (FEW, MANY))
    record("microseconds to draw a batch", round(1e6 * many), f"of {MANY:,} patients; {1e6 * few:.0f} of {FEW}")
    assert many <= SAME * few, f"{1e6 * few:.0f} and {1e6 * many:.0f} microseconds"
