"""Ctrl-C and SIGTERM at random moments: one line on how to resume, and the same result after resuming."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from faults.extent import Extent
from faults.folders import temporary_files
from faults.processes import Outcome, RunningCommand, run_successfully, wait_until
from faults.resumable import NAMES, command_named
from faults.summary import FAULTS

STARTED = 0.4  # seconds; a signal that arrives before the first line of the package is handled by Python itself


def interrupt(running: RunningCommand, number: int, after: float, *, whole_group: bool) -> Outcome:
    deadline = time.monotonic() + after
    wait_until(lambda: running.ended or time.monotonic() > deadline)
    if whole_group:
        running.send(number)
    elif not running.ended:
        os.kill(running.pid, number)
    outcome = running.wait()
    assert running.group_ended(), f"some of its processes are still running: {outcome}"
    return outcome


@pytest.mark.parametrize("name", NAMES)
def test_interrupts(
    name: str, toy: Path, many_scans: Path, workspace: Path, rng: random.Random, extent: Extent, record
) -> None:
    command = command_named(name, toy, many_scans)
    undisturbed = command.create_folder(workspace / "undisturbed", toy)
    out = command.create_folder(workspace / "out", toy)
    start = time.monotonic()
    run_successfully(*command.start(undisturbed))
    seconds, stopped = time.monotonic() - start, 0
    expected = command.result(undisturbed)
    signals = rng.sample((signal.SIGINT, signal.SIGTERM), 2)
    for turn in range(3 * extent.interrupts + 6):
        if stopped == extent.interrupts:
            break
        number = signals[turn % 2]
        whole_group = number == signal.SIGINT or rng.random() < 0.5
        after = rng.uniform(STARTED, seconds)
        outcome = interrupt(RunningCommand(*command.resume(out)), number, after, whole_group=whole_group)
        context = f"{number.name} after {after:.2f} seconds: {outcome}"
        assert "Traceback" not in outcome.err, context
        assert not temporary_files(out), context
        if outcome.code in (0, -number):  # finished before the signal; a Python that is shutting down just dies of it
            assert command.result(out) == expected, context
            shutil.rmtree(out)
            command.create_folder(out, toy)
            continue
        assert outcome.code == 128 + number, context
        assert "stopped" in outcome.error_line, context
        assert "to resume" in outcome.error_line, context
        stopped += 1
    assert stopped == extent.interrupts, f"only {stopped} signals arrived before the end"
    run_successfully(*command.resume(out))
    assert command.result(out) == expected
    record(FAULTS, "Ctrl-C or SIGTERM", name, stopped, "one line on how to resume; resumed with the same result")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["prepare", "segment"])
def test_two_interrupts_in_a_row(name: str, many_scans: Path, toy: Path, workspace: Path, record) -> None:
    command = command_named(name, toy, many_scans)
    out = workspace / name
    running = RunningCommand(*command.start(out))
    assert wait_until(lambda: (out / ".lock").is_file())
    running.send(signal.SIGINT)
    time.sleep(0.05)
    outcome = interrupt(running, signal.SIGINT, 0, whole_group=True)
    assert outcome.code in (130, -signal.SIGINT), outcome
    run_successfully(*command.resume(out))
    record(FAULTS, "two Ctrl-C in a row", name, 1, "stops, and can be resumed")
