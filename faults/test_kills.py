"""kill -9 at random moments, then resume, until the command is done; compared with an undisturbed run."""

import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults import resumable
from faults.extent import Extent
from faults.folders import snapshot, temporary_files
from faults.processes import RunningCommand, wait_until
from faults.resumable import Command
from faults.summary import KILLS


@dataclass(frozen=True)
class Undisturbed:
    out: Path
    seconds: float  # from the lock to the end


@dataclass
class Counts:
    kills: int = 0
    while_writing: int = 0  # a temporary file was left behind
    resumed: int = 0
    seconds: int = 0

    def cells(self) -> tuple[int, ...]:
        return self.kills, self.while_writing, self.resumed, self.seconds


def run_undisturbed(command: Command, out: Path) -> Undisturbed:
    running = RunningCommand(*command.start(out))
    assert wait_until(lambda: command.lock(out).is_file() or running.ended)
    start = time.monotonic()
    outcome = running.wait()
    assert outcome.code == 0, outcome
    return Undisturbed(out, time.monotonic() - start)


def lock_time(lock: Path) -> int:
    return lock.stat().st_mtime_ns if lock.is_file() else 0


def wait_for_moment(running: RunningCommand, lock: Path, out: Path, rng: random.Random, seconds: float) -> None:
    """Wait for a random time after the lock, for a number of changes in the folder, or for a file that is being
    written; or for the end of the command."""
    old = lock_time(lock)
    assert wait_until(lambda: running.ended or lock_time(lock) != old)
    way = rng.choice(("time", "write", "change"))
    if way != "change":
        deadline = time.monotonic() + rng.uniform(0, seconds)
        wait_until(lambda: running.ended or time.monotonic() > deadline)
        while way == "write" and not running.ended and not any(path.endswith(".tmp") for path, *_ in snapshot(out)):
            pass
        return
    changes, seen = rng.randint(1, 12), snapshot(out)
    while changes and not running.ended:
        now = snapshot(out)
        changes, seen = changes - (now != seen), now


@dataclass
class KillRounds:
    """A command is killed and resumed until it is done, in one folder after the other, until `limit` kills."""

    command: Command
    rng: random.Random
    undisturbed: Undisturbed
    limit: int
    counts: Counts

    def run(self, out: Path) -> None:
        """One round."""
        command, counts = self.command, self.counts
        expected = command.completed(self.undisturbed.out)
        before: resumable.Completed = frozenset()
        arguments = command.start(out)
        while True:
            running = RunningCommand(*arguments)
            if counts.kills < self.limit:
                wait_for_moment(running, command.lock(out), out, self.rng, self.undisturbed.seconds)
            if counts.kills == self.limit or running.ended:
                outcome = running.wait()
                assert outcome.code == 0, outcome
                return
            running.kill()
            partial = temporary_files(out)
            counts.kills, counts.while_writing = counts.kills + 1, counts.while_writing + bool(partial)
            completed = command.completed(out)
            assert before <= completed, f"kill {counts.kills}: completed work is lost"
            assert completed <= expected, f"kill {counts.kills}: a partial or wrong file passes as complete"
            assert len(partial) <= 2, f"kill {counts.kills}: temporary files accumulate: {partial}"
            before, arguments, counts.resumed = completed, command.resume(out), counts.resumed + 1


def kill_and_compare(command: Command, workspace: Path, rng: random.Random, kills: int) -> Counts:
    start = time.monotonic()
    rounds = KillRounds(command, rng, run_undisturbed(command, workspace / "undisturbed"), kills, Counts())
    expected = command.result(rounds.undisturbed.out)
    for number in range(kills + 5):  # some rounds end before any kill
        if rounds.counts.kills == kills:
            break
        out = workspace / f"round{number}"
        rounds.run(out)
        assert not temporary_files(out), f"left behind in a finished folder: {temporary_files(out)}"
        result = command.result(out)
        differing = [name for name in result.keys() | expected.keys() if result.get(name) != expected.get(name)]
        assert not differing, f"not as in the undisturbed run: {', '.join(sorted(differing))}"
        shutil.rmtree(out)
    counts = rounds.counts
    assert counts.kills == kills
    counts.seconds = round(time.monotonic() - start)
    return counts


@pytest.mark.parametrize("name", ["prepare", "segment", "evaluate", resumable.NATIVE, "score"])
def test_kills(
    name: str, toy: Path, many_scans: Path, workspace: Path, rng: random.Random, extent: Extent, record
) -> None:
    command = resumable.command_named(name, toy, many_scans)
    counts = kill_and_compare(command, workspace, rng, extent.kills)
    record(KILLS, name, *counts.cells(), command.compared)


@pytest.mark.sample(1)
@pytest.mark.parametrize("save_minutes", ["0", "0.01"])
def test_kills_in_training(
    save_minutes: str, toy: Path, workspace: Path, rng: random.Random, extent: Extent, record
) -> None:
    """With an interval of 0 minutes, nearly all of the time is spent on saves."""
    command = resumable.train(toy / "cohort", save_minutes=save_minutes)
    counts = kill_and_compare(command, workspace, rng, extent.training_kills)
    assert counts.while_writing or save_minutes != "0" or not extent.measured, "no kill happened during a save"
    record(KILLS, f"train --save-minutes {save_minutes}", *counts.cells(), command.compared)
