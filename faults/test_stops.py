"""Stopped at random moments, then resumed, until the command is done; compared with an undisturbed run.

By kill -9, which leaves no time for anything, and by Ctrl-C and SIGTERM, after which one line states how to resume.
"""

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from faults.commands import NAMES, Command, Completed
from faults.folders import snapshot, temporary_files
from faults.processes import Outcome, RunningCommand, wait_until

STARTED = 0.4  # seconds; a signal that arrives before the first line of the package is handled by Python itself


@pytest.mark.sample(1, by=lambda _name, number: number)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("name", NAMES)
def test_stopped_and_resumed(name, number, undisturbed, workspace, rng, extent, record_property):
    command, complete, seconds = undisturbed(name)
    expected, all_completed = command.result(complete), command.completed(complete)
    limit, stops, before = extent.stops, 0, Completed()
    out = command.create_folder(workspace / "out")
    for _ in range(4 * limit + 6):  # some end before they are stopped
        running = RunningCommand(*command.resume(out))
        if stops < limit:
            wait_for_moment(running, command, out, rng, seconds)
            send(running, number, to_all=number != signal.SIGTERM or rng.random() < 0.5)
        outcome = running.wait()
        assert running.group_ended(), f"some of its processes are still running: {outcome}"
        if outcome.code == 0 or (outcome.code == -number and number != signal.SIGKILL):  # Python was shutting down
            assert not temporary_files(out), f"left behind in a finished folder: {temporary_files(out)}"
            assert command.result(out) == expected, outcome
            if stops == limit:
                return
            shutil.rmtree(out)
            command.create_folder(out)
            before = Completed()
            continue
        stops += 1
        check_stopped(outcome, number, temporary_files(out))
        record_property(f"{number.name} while a file was written", int(bool(temporary_files(out))))
        completed = command.completed(out)
        assert before <= completed, "completed work is lost"
        assert completed <= all_completed, "a partial or wrong file passes as complete"
        before = completed
    raise AssertionError(f"only {stops} signals arrived before the end")


def wait_for_moment(running: RunningCommand, command: Command, out: Path, rng: random.Random, seconds: float) -> None:
    """Wait for a random time, for a number of changes in the folder, or for a file that is being written; or for the
    end of the command."""
    if command.name == "calibrate":  # it has no lock
        time.sleep(STARTED)
    else:
        old = lock_time(command.lock(out))
        assert wait_until(lambda: running.ended or lock_time(command.lock(out)) != old)
    way = rng.choice(("time", "write", "change"))
    if way != "change":
        deadline = time.monotonic() + rng.uniform(0, seconds)
        wait_until(lambda: running.ended or time.monotonic() > deadline)
        while way == "write" and not running.ended and not any(path.suffix == ".tmp" for path, _ in snapshot(out)):
            pass
        return
    changes, seen = rng.randint(1, 12), snapshot(out)
    while changes and not running.ended:
        now = snapshot(out)
        changes, seen = changes - (now != seen), now


def lock_time(lock: Path) -> int:
    return lock.stat().st_mtime_ns if lock.is_file() else 0


def send(running: RunningCommand, number: int, *, to_all: bool) -> None:
    """To the whole group, as a terminal does, or to the command alone."""
    if to_all:
        running.send(number)
    elif not running.ended:
        running.process.send_signal(number)


def check_stopped(outcome: Outcome, number: signal.Signals, unfinished: list[Path]) -> None:
    if number == signal.SIGKILL:
        assert outcome.code == -number, outcome
        assert len(unfinished) <= 2, f"temporary files accumulate: {unfinished}"
        return
    assert outcome.code == 128 + number, outcome
    assert "Traceback" not in outcome.err, outcome
    assert "stopped" in outcome.error_line, outcome
    assert "to resume" in outcome.error_line, outcome
    assert not unfinished, outcome
