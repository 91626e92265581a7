"""A killed worker process: one line of error message, or the complete result. Never a hang."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.commands import Command
from faults.processes import (
    RunningCommand,
    assert_refused,
    is_running,
    kill_process,
    run_successfully,
    wait_until,
    worker_pids,
)

TORCHRUN = (Path(sys.executable).with_name("torchrun"), "--nproc-per-node", "2", "-m", "anofpdm")
Undisturbed = Callable[[str], tuple[Command, Path, float]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["prepare", "phantom", "score"])
def test_killed_worker(name, undisturbed, workspace, rng, extent):
    command, complete, _ = undisturbed(name)
    expected, refused = command.result(complete), 0
    for number in range(extent.worker_kills):
        out = workspace / f"out{number}"
        running = RunningCommand(*command.start(out))
        assert wait_until(lambda running=running: len(worker_pids(running)) == 2 or running.ended)
        time.sleep(rng.uniform(0, 1))
        for pid in worker_pids(running)[:1]:
            kill_process(pid)
        outcome = running.wait()
        assert running.group_ended(), outcome
        if outcome.code:
            assert_refused(outcome, "a worker process died", "re-run the same command")
            refused += 1
            run_successfully(*command.resume(out))
        assert command.result(out) == expected
    assert refused or not extent.measured, "no worker was killed before the end"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["segment", "evaluate"])
def test_killed_torchrun_process(name, undisturbed, workspace):
    """torchrun itself reports the loss, at length. Ours to check: nothing hangs and no work is lost."""
    command, complete, _ = undisturbed(name)
    out = workspace / "out"
    running = RunningCommand(*command.start(out), program=TORCHRUN)
    assert wait_until(lambda: (out / ".lock").is_file())
    ranks = [pid for pid in worker_pids(running, "anofpdm") if pid != running.pid]
    assert len(ranks) == 2, ranks
    kill_process(ranks[1])
    outcome = running.wait()
    assert outcome.code != 0, outcome
    assert wait_until(lambda: not any(map(is_running, ranks)), 60), "a process waits for one that was killed"
    run_successfully(*command.resume(out))
    assert command.result(out) == command.result(complete)
