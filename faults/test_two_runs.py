"""Two runs with one output folder: the second is refused, and the first is undisturbed."""

import signal
from pathlib import Path

import pytest

from faults.commands import LOCKED
from faults.folders import hash_files
from faults.processes import RunningCommand, assert_refused, run, wait_until


def is_held(lock: Path) -> bool:
    """Whether a process holds it: the file exists a moment before."""
    if not lock.is_file():
        return False
    inode = f":{lock.stat().st_ino}"
    return any(word.endswith(inode) for line in Path("/proc/locks").read_text().splitlines() for word in line.split())


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LOCKED)
def test_second_run_is_refused(name, undisturbed, workspace):
    command, complete, _ = undisturbed(name)
    out = command.create_folder(workspace / "out")
    first = RunningCommand(*command.start(out))
    assert wait_until(lambda: is_held(command.lock(out)) or first.ended), "no lock"
    first.send(signal.SIGSTOP)
    assert not first.ended, first.wait()
    before = hash_files(out)
    assert_refused(run(*command.start(out)), str(out), "another run is writing here")
    assert hash_files(out) == before, "the second run changed something"
    first.send(signal.SIGCONT)
    outcome = first.wait()
    assert outcome.code == 0, outcome
    assert command.result(out) == command.result(complete)
