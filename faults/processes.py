"""Real commands as processes: start them, send them signals, and check how they ended."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

ANOFPDM = Path(sys.executable).with_name("anofpdm")
TIMEOUT = 300.0  # seconds after which a command counts as hanging; generous, for a machine that does other work, too
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

Argument = str | Path


@dataclass(frozen=True)
class Outcome:
    command: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The one line of the error message; a test fails where there are more, or none."""
        lines = [line for line in self.err.splitlines() if line.startswith("anofpdm: ")]
        assert len(lines) == 1, f"expected one line of error message, got {len(lines)}:\n{self}"
        return lines[0]

    def __str__(self) -> str:
        return f"{' '.join(self.command)}\nexit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class RunningCommand:
    """A command in a process group of its own, so that a signal reaches all of its processes."""

    started: ClassVar[list["RunningCommand"]] = []

    def __init__(
        self,
        *arguments: Argument,
        program: tuple[Argument, ...] = (ANOFPDM,),
        cwd: Path | None = None,
        **environment: str,
    ):
        self.command = tuple(str(argument) for argument in (*program, *arguments))
        self._out = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  read after the command has ended
        self._err = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            cwd=cwd,
            env={**ENVIRONMENT, **environment},
        )
        RunningCommand.started.append(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: int) -> None:
        """Send a signal to the whole group, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> Outcome:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"hangs, after {timeout} seconds: {self._outcome()}") from None
        return self._outcome()

    def end(self) -> None:
        """Kill the command and everything it has started."""
        if not self.ended:
            for pid in (*descendants(self.pid), self.pid):
                kill_process(pid)
            self.process.wait()

    def group_ended(self, timeout: float = 30.0) -> bool:
        """Whether all processes of its group have ended, or do so in time."""
        return wait_until(lambda: not group_members(self.pid), timeout)

    def _outcome(self) -> Outcome:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
        return Outcome(self.command, self.process.returncode, *texts)


def run(*arguments: Argument, timeout: float = TIMEOUT, **environment: str) -> Outcome:
    return RunningCommand(*arguments, **environment).wait(timeout)  # type: ignore[arg-type]


def run_successfully(*arguments: Argument, timeout: float = TIMEOUT, **environment: str) -> Outcome:
    outcome = run(*arguments, timeout=timeout, **environment)
    assert outcome.code == 0, outcome
    assert "Traceback" not in outcome.err, outcome
    return outcome


def assert_refused(outcome: Outcome, *parts: str, code: int = 1) -> None:
    """One line of error message that contains `parts`, and no traceback."""
    assert outcome.code == code, outcome
    assert "Traceback" not in outcome.err + outcome.out, outcome
    for part in parts:
        assert part in outcome.error_line, f"{part!r} is not in the error message of\n{outcome}"


def running_processes() -> dict[int, tuple[int, int]]:
    """Parent and group of every process on this machine that has not ended."""
    processes = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # no process, or one that ends just now
            state, parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if state != "Z":
                processes[int(folder.name)] = int(parent), int(group)
    return processes


def is_running(pid: int) -> bool:
    return pid in running_processes()


def group_members(group: int) -> list[int]:
    return [pid for pid, (_, its_group) in running_processes().items() if its_group == group]


def descendants(pid: int) -> list[int]:
    """Child processes, and their child processes."""
    parents = [pid]
    processes = running_processes()
    for parent in parents:
        parents += [child for child, (its_parent, _) in processes.items() if its_parent == parent]
    return parents[1:]


def worker_pids(running: RunningCommand, word: str = "spawn_main") -> list[int]:
    """Worker processes of a command, recognised by a word of their command line."""
    pids = []
    for pid in descendants(running.pid):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_text():
                pids.append(pid)
    return sorted(pids)


def kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def memory_kib(pid: int, field: str) -> int:
    """VmRSS, the memory of a process now, or VmHWM, its peak; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    return 0


def wait_until(condition: Callable[[], object], timeout: float = TIMEOUT, interval: float = 0.002) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True
