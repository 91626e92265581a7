"""Faults: the real commands, started as processes and hurt. Run by `make faults`, never by `make test`."""

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import pytest
from commands import TOLD, Disk, Running, succeed

SEED = "--fault-seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(SEED, type=int, default=0, help="What the moments of faults are drawn from.")
    parser.addoption("--report", type=Path, default=None, help="Also write the table of the end to this file.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = TOLD.lines()
    if not lines:
        return
    terminalreporter.section("faults")
    for line in lines:
        terminalreporter.write_line(line)
    if report := config.getoption("--report"):
        report.write_text("\n".join(lines) + "\n")


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """A test that fails halfway leaves no command behind."""
    yield
    while Running.started:
        Running.started.pop().end()


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the suite's seed and the test's name; printed, so that a failure says how to have it again."""
    seed = f"{request.config.getoption(SEED)} {request.node.name}"
    print(f"moments are drawn from {seed!r}; {SEED} changes them")
    return random.Random(seed)


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """scans/, cohort/ and a calibrated model/ that knows nothing but has something to say."""
    from tests import toys

    folder = tmp_path_factory.mktemp("toy")
    toys.untrained(folder)
    succeed("calibrate", folder / "model", folder / "cohort", *QUICK)
    return folder


@pytest.fixture(scope="session")
def many_scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough of them that preparing takes a while."""
    from tests import toys

    return toys.brats_cohort(tmp_path_factory.mktemp("many") / "scans", 40)


QUICK = ("--levels", "3", "--strengths", "0,2", "--device", "cpu")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    """Makes a disk of so many kilobytes; where that is not allowed, the test is skipped."""
    made: list[Disk] = []

    def make(kilobytes: int) -> Disk:
        try:
            made.append(Disk(tmp_path / f"disk{len(made)}", kilobytes))
        except OSError as problem:
            pytest.skip(f"a small disk needs the right to mount one: {problem}")
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied at once: models are large, and pytest keeps its folders."""
    yield tmp_path
    for path in tmp_path.iterdir():
        shutil.rmtree(path, ignore_errors=True)
