"""Options, fixtures and the choice of the sample."""

import os
import random
import shutil
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a script; processes would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

import nibabel as nib
import numpy as np
import pytest

from faults.extent import FULL, SAMPLE, Extent
from faults.folders import Disk
from faults.processes import RunningCommand, run_successfully
from faults.resumable import QUICK, predicted_masks
from faults.summary import Cell, Summary, skip_without
from tests import toys

SEED = "--fault-seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(SEED, type=int, default=0, help="Random seed: moments of faults, and the choice of --sample.")
    parser.addoption("--sample", action="store_true", help="Run a short, seeded sample of every part.")
    parser.addoption("--report", type=Path, default=None, help="Also write the tables to this Markdown file.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample(count, by): with --sample, run `count` cases of this test for each `by`")
    if not hasattr(config, "workerinput"):  # in the main process of pytest-xdist only
        config.pluginmanager.register(Summary(config), "fault-summary")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --sample, keep a seeded choice of the cases of each test that is marked with `sample`."""
    if not config.getoption("--sample"):
        return
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (marker := item.get_closest_marker("sample")) is not None:
            by = marker.kwargs.get("by", lambda _value: "")
            group = by(*item.callspec.params.values())
            groups[f"{config.getoption(SEED)} {item.originalname} {group}"].append(item)
    dropped: set[pytest.Item] = set()
    for name, group in groups.items():
        count = min(group[0].get_closest_marker("sample").args[0], len(group))
        dropped |= set(group) - set(random.Random(name).sample(group, count))
    config.hook.pytest_deselected(items=[item for item in items if item in dropped])
    items[:] = [item for item in items if item not in dropped]


@pytest.fixture(autouse=True)
def end_processes() -> Iterator[None]:
    """A test that fails halfway leaves no command running."""
    yield
    while RunningCommand.started:
        RunningCommand.started.pop().end()


@pytest.fixture(scope="session")
def extent(request: pytest.FixtureRequest) -> Extent:
    return SAMPLE if request.config.getoption("--sample") else FULL


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Adds a row to one of the tables in summary.py."""

    def add(table: str, *row: Cell) -> None:
        request.node.user_properties.append((table, row))

    return add


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by --fault-seed and the name of the test; printed, so that a failure can be reproduced."""
    seed = f"{request.config.getoption(SEED)} {request.node.name}"
    print(f"random seed {seed!r}; set by {SEED}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scans/, cohort/ and an untrained, calibrated model/."""
    folder = tmp_path_factory.mktemp("toy")
    toys.untrained(folder, channels=12)  # with fewer, the teacher of `distill` finds no lesion
    run_successfully("calibrate", folder / "model", folder / "cohort", *QUICK)
    return folder


@pytest.fixture(scope="session")
def many_scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough scans that `prepare` is still busy when a fault is injected; predicted masks are beside them."""
    scans = toys.brats_cohort(tmp_path_factory.mktemp("many") / "scans", 40)
    for path in scans.rglob("*_seg.nii.gz"):
        mask = nib.load(path)
        toys.save(predicted_masks(scans) / path.name, np.roll(np.asarray(mask.dataobj), 1, axis=0), mask.affine)
    return scans


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    """Mounts a disk of so many kilobytes; skips the test where that is not allowed."""
    disks: list[Disk] = []

    def make(kilobytes: int) -> Disk:
        try:
            disks.append(Disk(tmp_path / f"disk{len(disks)}", kilobytes))
        except OSError:
            skip_without("permission to mount a tmpfs")
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied after the test: models are large, and pytest keeps its folders."""
    yield tmp_path
    for path in tmp_path.iterdir():
        shutil.rmtree(path, ignore_errors=True)
