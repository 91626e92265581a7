"""Two runs on one output folder: the second is refused, the first is unharmed, and a dead one blocks nobody."""

import shutil
import signal
from pathlib import Path

import pytest
from cases import Case
from commands import Running, contents, record, refused, run, succeed, waited
from test_disk import WITH_A_MODEL, case_named

LOCKED = {"phantom": "", "prepare": "", "train": "", "distill": "student", "segment": "", "evaluate": ""}


def started(case: Case, toy: Path, out: Path) -> Running:
    """A run that has its folder, and holds still."""
    if case.name in WITH_A_MODEL:
        shutil.copytree(toy / "model", out)
    lock = out / LOCKED[case.name] / ".lock"
    running = Running(*case.begin(out))
    assert waited(lambda: lock.is_file() or running.over), running.kill()
    running.send(signal.SIGSTOP)
    assert not running.over, running.wait()
    return running


@pytest.fixture(params=list(LOCKED))
def case(request: pytest.FixtureRequest, toy: Path, many_scans: Path) -> Case:
    return case_named(request.param, toy, many_scans)


def test_the_second_run_is_refused(case: Case, toy: Path, space: Path) -> None:
    first = started(case, toy, space / "out")
    before = contents(space / "out")
    refused(run(*case.begin(space / "out")), str(space / "out"), "another run is writing here")
    assert contents(space / "out") == before, "the second run changed something"
    first.send(signal.SIGCONT)
    ended = first.wait()
    assert ended.code == 0, ended
    alone = space / "alone"
    if case.name in WITH_A_MODEL:
        shutil.copytree(toy / "model", alone)
    succeed(*case.begin(alone))
    assert case.result(space / "out") == case.result(alone)
    record(f"{case.name} twice on one folder", 1, "the second is refused, the first finishes as if alone")


def test_a_dead_run_blocks_nobody(case: Case, toy: Path, space: Path) -> None:
    out = space / "out"
    started(case, toy, out).kill()
    assert (out / LOCKED[case.name] / ".lock").is_file(), "nothing is left behind to be in the way"
    succeed(*case.next(out))
    record(f"{case.name} after a killed run's lock", 1, "starts")
