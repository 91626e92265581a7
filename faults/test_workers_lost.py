"""A worker process is killed: the command says so and ends, or finishes with the right result. It never hangs."""

import random
import sys
import time
from pathlib import Path

import pytest
from cases import Case, evaluate_case, phantom_case, prepare_case, segment_case
from commands import Running, alive, kill_one, record, refused, succeed, waited, workers

TORCHRUN = (Path(sys.executable).with_name("torchrun"), "--nproc-per-node", "2", "-m", "anofpdm")
TIMES = 5


@pytest.mark.parametrize("name", ["prepare", "phantom"])
def test_a_worker_is_killed(name: str, many_scans: Path, space: Path, chance: random.Random) -> None:
    case = prepare_case(many_scans) if name == "prepare" else phantom_case()
    succeed(*case.begin(space / "alone"))
    said = 0
    for number in range(TIMES):
        out = space / f"out{number}"
        running = Running(*case.begin(out))
        assert waited(lambda running=running: len(workers(running)) == 2 or running.over)
        time.sleep(chance.uniform(0, 1))
        for pid in workers(running)[:1]:
            kill_one(pid)
        ended = running.wait()
        assert running.alone(), ended
        if ended.code:
            refused(ended, "a worker process died", "re-run the same command")
            said += 1
            succeed(*case.next(out))
        assert case.result(out) == case.result(space / "alone")
    assert said, "no worker was killed in time; nothing was tried"
    record(f"a worker of {name} killed", TIMES, f"{said} said so in one line and went on when asked; none hangs")


def test_workers_of_a_killed_command_end(many_scans: Path, space: Path) -> None:
    running = Running(*prepare_case(many_scans).begin(space / "out"))
    assert waited(lambda: len(workers(running)) == 2)
    orphans = workers(running)
    kill_one(running.process.pid)
    running.wait()
    assert waited(lambda: not any(map(alive, orphans)), 10), "workers outlive the command that started them"
    assert running.alone()
    record("workers of a killed command", len(orphans), "end with it")


@pytest.mark.parametrize("name", ["segment", "evaluate"])
def test_one_of_several_processes_is_killed(name: str, toy: Path, space: Path) -> None:
    """torchrun itself reports the loss, at length; ours is that nothing hangs and nothing is lost."""
    make = segment_case if name == "segment" else evaluate_case
    case: Case = make(toy / "model", toy / "cohort")
    succeed(*case.begin(space / "alone"))
    running = Running(*case.begin(space / "out"), program=TORCHRUN)
    assert waited(lambda: (space / "out" / ".lock").is_file())
    ranks = ranks_of(running)
    assert len(ranks) == 2, ranks
    kill_one(ranks[1])
    ended = running.wait(90)
    assert ended.code != 0, ended
    assert waited(lambda: not any(map(alive, ranks)), 40), "a process is left that waits for one that is dead"
    succeed(*case.next(space / "out"))
    assert case.result(space / "out") == case.result(space / "alone")
    record(f"one of two processes of {name} killed", 1, "ends, and one process alone finishes with the same result")


def ranks_of(running: Running) -> list[int]:
    """The processes that torchrun started, in order."""
    return [pid for pid in workers(running, "anofpdm") if pid != running.process.pid]
