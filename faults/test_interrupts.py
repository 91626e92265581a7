"""Ctrl-C and a scheduler's SIGTERM, at random moments: a clean end, a word on how to go on, and nothing lost."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from cases import Case
from commands import Ended, Running, record, succeed, unfinished, waited
from test_disk import NAMES, WITH_A_MODEL, case_named

INTERRUPTS = 6
STARTED = 0.4  # seconds: before Python runs any of our lines, the answer is Python's own


def new_folder(case: Case, toy: Path, out: Path) -> Path:
    if case.name in WITH_A_MODEL:
        shutil.copytree(toy / "model", out)
    return out


def interrupted(running: Running, number: int, after: float, *, whole_group: bool) -> Ended:
    end = time.monotonic() + after
    waited(lambda: running.over or time.monotonic() > end)
    if whole_group:
        running.send(number)
    elif not running.over:
        os.kill(running.process.pid, number)
    ended = running.wait(60)
    assert running.alone(), f"processes of it go on: {ended}"
    return ended


@pytest.mark.parametrize("name", NAMES)
def test_interrupts(name: str, toy: Path, many_scans: Path, space: Path, chance: random.Random) -> None:
    case = case_named(name, toy, many_scans)
    alone, out = new_folder(case, toy, space / "alone"), new_folder(case, toy, space / "out")
    start = time.monotonic()
    succeed(*case.begin(alone))
    seconds, stopped, finished = time.monotonic() - start, 0, 0
    wanted = case.result(alone)
    for turn in range(3 * INTERRUPTS):
        if stopped == INTERRUPTS:
            break
        number = (signal.SIGINT, signal.SIGTERM)[turn % 2]
        group = number == signal.SIGINT or chance.random() < 0.5
        after = chance.uniform(STARTED, seconds)
        ended = interrupted(Running(*case.next(out)), number, after, whole_group=group)
        said = f"{signal.Signals(number).name} after {after:.2f} seconds: {ended}"
        assert "Traceback" not in ended.err, said
        assert not unfinished(out), said
        if ended.code in (
            0,
            -number,
        ):  # it was quicker; while Python takes its leave, a signal ends it as it always does
            assert case.result(out) == wanted, said
            finished += 1
            shutil.rmtree(out)
            new_folder(case, toy, out)
            continue
        assert ended.code == 128 + number, said
        assert "stopped" in ended.complaint, said
        assert "to resume" in ended.complaint, said
        stopped += 1
    assert stopped == INTERRUPTS, f"only {stopped} of {stopped + finished} were in time"
    succeed(*case.next(out))
    assert case.result(out) == wanted
    record(f"{name} interrupted", stopped, "Ctrl-C or SIGTERM: a word on how to go on, then the same result")


def test_two_interrupts_in_a_row(many_scans: Path, toy: Path, space: Path) -> None:
    """Someone who cannot wait presses Ctrl-C again."""
    for name in ("prepare", "segment"):
        case = case_named(name, toy, many_scans)
        out = space / name
        running = Running(*case.begin(out))
        assert waited(lambda out=out: (out / ".lock").is_file())
        running.send(signal.SIGINT)
        time.sleep(0.05)
        ended = interrupted(running, signal.SIGINT, 0, whole_group=True)
        assert ended.code in (130, -signal.SIGINT), ended
        succeed(*case.next(out))
    record("two Ctrl-C in a row", 2, "ends, and goes on when asked to")
