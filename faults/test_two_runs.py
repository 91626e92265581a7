"""Two runs with one output folder: the second is refused, and the lock of a killed run blocks nothing."""

import signal
from pathlib import Path

import pytest

from faults.folders import hash_files
from faults.processes import RunningCommand, assert_refused, run, run_successfully, wait_until
from faults.resumable import LOCK_FOLDERS, Command, command_named
from faults.summary import FAULTS


def start_and_suspend(command: Command, toy: Path, out: Path) -> RunningCommand:
    """A run that holds the lock of its folder and is suspended."""
    command.create_folder(out, toy)
    running = RunningCommand(*command.start(out))
    assert wait_until(lambda: is_held(command.lock(out)) or running.ended), running.kill()
    running.send(signal.SIGSTOP)
    assert not running.ended, running.wait()
    return running


def is_held(lock: Path) -> bool:
    """Whether a process holds it: the file exists a moment before."""
    if not lock.is_file():
        return False
    inode = f":{lock.stat().st_ino}"
    return any(word.endswith(inode) for line in Path("/proc/locks").read_text().splitlines() for word in line.split())


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LOCK_FOLDERS)
def test_second_run_is_refused(name: str, toy: Path, many_scans: Path, workspace: Path, record) -> None:
    command = command_named(name, toy, many_scans)
    out = workspace / "out"
    first = start_and_suspend(command, toy, out)
    before = hash_files(out)
    assert_refused(run(*command.start(out)), str(out), "another run is writing here")
    assert hash_files(out) == before, "the second run changed something"
    first.send(signal.SIGCONT)
    outcome = first.wait()
    assert outcome.code == 0, outcome
    undisturbed = command.create_folder(workspace / "undisturbed", toy)
    run_successfully(*command.start(undisturbed))
    assert command.result(out) == command.result(undisturbed)
    record(FAULTS, "two runs on one folder", name, 1, "the second is refused; the first is undisturbed")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LOCK_FOLDERS)
def test_lock_of_a_killed_run(name: str, toy: Path, many_scans: Path, workspace: Path, record) -> None:
    command = command_named(name, toy, many_scans)
    out = workspace / "out"
    start_and_suspend(command, toy, out).kill()
    assert command.lock(out).is_file(), "no lock was left behind"
    run_successfully(*command.resume(out))
    record(FAULTS, "lock left by a killed run", name, 1, "the next run starts")
