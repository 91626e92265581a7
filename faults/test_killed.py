"""kill -9 at random moments, again and again, until the command has finished; then compare with a run left alone."""

import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cases import Case, evaluate_case, prepare_case, segment_case, train_case
from commands import Kills, Running, listing, record_kills, unfinished, waited

KILLS = 25


@dataclass(frozen=True)
class Undisturbed:
    out: Path
    seconds: float  # from the first sign in its folder to its end


def left_alone(case: Case, out: Path) -> Undisturbed:
    running = Running(*case.begin(out))
    assert waited(lambda: begun(out) or running.over)
    start = time.monotonic()
    ended = running.wait()
    assert ended.code == 0, ended
    return Undisturbed(out, time.monotonic() - start)


def begun(out: Path) -> bool:
    return (out / ".lock").is_file()


def wait_for_moment(running: Running, out: Path, chance: random.Random, seconds: float) -> None:
    """Some time after work has begun, or when the folder has changed so often, or right in the middle of a write; at
    once if the command ends."""
    stale = (out / ".lock").stat().st_mtime_ns if begun(out) else 0
    assert waited(lambda: running.over or (begun(out) and (out / ".lock").stat().st_mtime_ns != stale))
    way = chance.choice(("time", "write", "change"))
    if way != "change":
        end = time.monotonic() + chance.uniform(0, seconds)
        waited(lambda: running.over or time.monotonic() > end)
        while way == "write" and not running.over and not any(path.endswith(".tmp") for path, *_ in listing(out)):
            pass
        return
    changes, seen = chance.randint(1, 12), listing(out)
    while changes and not running.over:
        now = listing(out)
        changes, seen = changes - (now != seen), now


@dataclass
class Count:
    """Of what was done to a command so far."""

    kills: int = 0
    writing: int = 0
    continued: int = 0


def killed_until_done(
    case: Case, out: Path, chance: random.Random, alone: Undisturbed, most: int, count: Count
) -> None:
    """Kill and go on, until it ends by itself or has been killed often enough; then it is left to finish."""
    expected, before, words = case.done(alone.out), frozenset(), case.begin(out)
    while True:
        running = Running(*words)
        if count.kills < most:
            wait_for_moment(running, out, chance, alone.seconds)
        if count.kills == most or running.over:
            ended = running.wait()
            assert ended.code == 0, ended
            return
        running.kill()
        half_written = unfinished(out)
        count.kills, count.writing = count.kills + 1, count.writing + bool(half_written)
        done = case.done(out)
        assert before <= done, f"kill {count.kills}: what was done is lost"
        assert done <= expected, f"kill {count.kills}: something half-written, or wrong, is taken as whole"
        assert len(half_written) <= 2, f"kill {count.kills}: half-written files pile up: {half_written}"
        before, words, count.continued = done, case.next(out), count.continued + 1


def hurt(case: Case, space: Path, chance: random.Random, kills: int) -> Count:
    start, count = time.monotonic(), Count()
    alone = left_alone(case, space / "alone")
    wanted = case.result(alone.out)
    for number in range(kills):  # a round may end before any kill, but not all of them
        if count.kills == kills:
            break
        out = space / f"round{number}"
        killed_until_done(case, out, chance, alone, kills, count)
        assert not unfinished(out), f"left behind in a finished folder: {unfinished(out)}"
        assert case.result(out) == wanted, differing(case.result(out), wanted)
        shutil.rmtree(out)
    assert count.kills == kills
    seconds = time.monotonic() - start
    record_kills(Kills(case.name, count.kills, count.writing, count.continued, case.compared_by, seconds))
    return count


def differing(found: dict[str, str], wanted: dict[str, str]) -> str:
    names = {name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}
    return f"not as in the undisturbed run: {', '.join(sorted(names))}"


def test_prepare(many_scans: Path, space: Path, chance: random.Random) -> None:
    hurt(prepare_case(many_scans), space, chance, KILLS)


def test_segment(toy: Path, space: Path, chance: random.Random) -> None:
    hurt(segment_case(toy / "model", toy / "cohort"), space, chance, KILLS)


def test_evaluate(toy: Path, space: Path, chance: random.Random) -> None:
    hurt(evaluate_case(toy / "model", toy / "cohort"), space, chance, KILLS)


@pytest.mark.parametrize("save_minutes", ["0", "0.01"], ids=["saving all the time", "saving now and then"])
def test_train(toy: Path, space: Path, chance: random.Random, save_minutes: str) -> None:
    """Nearly all of the first one's time is spent saving."""
    count = hurt(train_case(toy / "cohort", save_minutes=save_minutes), space, chance, 15)
    assert count.writing or save_minutes != "0", "no kill fell into a save"
