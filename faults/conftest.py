"""Options, fixtures and the choice of the sample."""

import os
import random
import shutil
import signal
import time
from collections import defaultdict
from functools import cache
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a script; processes would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)

import nibabel as nib
import numpy as np
import pytest

from anofpdm.scans import write_nifti
from faults.commands import QUICK, Command, Input
from faults.extent import FULL, SAMPLE
from faults.folders import Disk
from faults.processes import RunningCommand, run_successfully, wait_until
from tests import toys
from tests.raw.toy_studies import random_rigid, stripped_head, thick_grid

SEED = "--fault-seed"
RAW_GRIDS = {"flair": ((1.8, 1.8, 5.0), (112, 128, 30)), "t2": ((2.0, 2.0, 4.0), (100, 112, 38))}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(SEED, type=int, default=0, help="Random seed: moments of faults, and the choice of --sample.")
    parser.addoption("--sample", action="store_true", help="Run a short, seeded sample of every part.")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sample(count, by): with --sample, run `count` cases of this test for each `by`")


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
def end_processes():
    """A test that fails halfway leaves no command running."""
    yield
    while RunningCommand.started:
        RunningCommand.started.pop().end()


@pytest.fixture(scope="session")
def extent(request):
    return SAMPLE if request.config.getoption("--sample") else FULL


@pytest.fixture
def rng(request):
    """Seeded by --fault-seed and the name of the test; printed, so that a failure can be reproduced."""
    seed = f"{request.config.getoption(SEED)} {request.node.name}"
    print(f"random seed {seed!r}; set by {SEED}")
    return random.Random(seed)


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A calibrated model with a cohort, scans enough to keep `prepare` busy when a fault is injected, and FLAIR and T2
    of a phantom that moved in between."""
    toy, many, study = (tmp_path_factory.mktemp(name) for name in ("toy", "many", "study"))
    toys.untrained(toy, channels=12)  # with fewer, the teacher of `distill` finds no lesion
    run_successfully("calibrate", toy / "model", toy / "cohort", *QUICK)
    files = Input(toy, toys.brats_cohort(many / "scans", 40), study)
    for path in files.many_scans.rglob("*_seg.nii.gz"):
        mask = nib.load(path)
        toys.save(files.predicted / path.name, np.roll(np.asarray(mask.dataobj), 1, axis=0), mask.affine)
    for seed, (name, grid) in enumerate(RAW_GRIDS.items()):
        movement = random_rigid(np.random.default_rng(seed), 8.0 * seed, 10.0 * seed)
        head = stripped_head(name, movement, thick_grid(movement, *grid))
        write_nifti(study / f"anna_{name}.nii.gz", head.voxels, head.grid)
    return files


@pytest.fixture(scope="session")
def undisturbed(files, tmp_path_factory):
    """A command by its name, its complete output folder, and the seconds that it took from its lock to its end."""

    @cache
    def run(name: str) -> tuple[Command, Path, float]:
        command = Command(name, files)
        out = command.create_folder(tmp_path_factory.mktemp("undisturbed") / "out")
        running = RunningCommand(*command.start(out))
        assert wait_until(lambda: command.lock(out).is_file() or running.ended)
        start = time.monotonic()
        outcome = running.wait()
        assert outcome.code == 0, outcome
        return command, out, time.monotonic() - start

    return run


@pytest.fixture
def make_disk(tmp_path):
    """Mounts a disk of so many kilobytes; skips the test where that is not allowed."""
    disks: list[Disk] = []

    def make(kilobytes: int) -> Disk:
        try:
            disks.append(Disk(tmp_path / f"disk{len(disks)}", kilobytes))
        except OSError:
            pytest.skip("needs permission to mount a tmpfs")
        return disks[-1]

    yield make
    for disk in disks:
        disk.unmount()


@pytest.fixture
def workspace(tmp_path):
    """A folder that is emptied after the test: models are large, and pytest keeps its folders."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)
