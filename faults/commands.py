"""Starting the real commands as processes, hurting them, and looking at what they leave behind."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

ANOFPDM = Path(sys.executable).with_name("anofpdm")
PATIENCE = 120.0  # seconds after which a command is said to hang
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


# ---- what is told at the end -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kills:
    command: str
    kills: int
    writing: int  # of them, while a file was being written: its temporary name was left behind
    continued: int  # times that the command was started again and went on
    compared_by: str
    seconds: float


@dataclass(frozen=True)
class Counted:
    name: str
    count: int
    note: str


@dataclass
class Told:
    kills: list[Kills] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Two small tables, in Markdown."""
        found: list[str] = []
        if self.kills:
            found += [
                "| command | kills | in a write | continued | compared by | seconds |",
                "|---|---|---|---|---|---|",
            ]
            found += [
                f"| {k.command} | {k.kills} | {k.writing} | {k.continued} | {k.compared_by} | {k.seconds:.0f} |"
                for k in self.kills
            ]
            found += [""]
        if self.counted:
            found += ["| what | count | note |", "|---|---|---|"]
            found += [f"| {c.name} | {c.count} | {c.note} |" for c in self.counted]
        return found


TOLD = Told()


def record(name: str, count: int, note: str = "") -> None:
    """One line of the table that is printed at the end."""
    TOLD.counted.append(Counted(name, count, note))


def record_kills(kills: Kills) -> None:
    TOLD.kills.append(kills)


# ---- a command as a process ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """Its one line of error; anything that looks like more than that is a failure."""
        lines = [line for line in self.err.splitlines() if line.startswith("anofpdm: ")]
        assert len(lines) == 1, f"not one line of error, but {len(lines)}:\n{self}"
        return lines[0]

    def __str__(self) -> str:
        return f"{' '.join(self.words)}\nended with {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Running:
    """A command in a process group of its own, so that all of it can be hurt at once."""

    started: ClassVar[list["Running"]] = []

    def __init__(self, *words: str | Path, program: tuple[str | Path, ...] = (ANOFPDM,), **environment: str):
        self.words = tuple(str(word) for word in (*program, *words))
        self._out = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  read when it has ended
        self._err = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            self.words,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
            env={**ENVIRONMENT, **environment},
        )
        Running.started.append(self)

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def send(self, number: int) -> None:
        """To the whole group, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> Ended:
        self.send(signal.SIGKILL)
        return self.wait()

    def wait(self, within: float = PATIENCE) -> Ended:
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"hangs, after {within} seconds: {self._told()}") from None
        return self._told()

    def end(self) -> None:
        """Whatever state it is in, and all that it started."""
        if not self.over:
            for pid in (*descendants(self.process.pid), self.process.pid):
                kill_one(pid)
            self.process.wait()

    def alone(self, within: float = 10.0) -> bool:
        """Whether nothing of its group is left, or will be in a moment."""
        return waited(lambda: not members(self.process.pid), within)

    def _told(self) -> Ended:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read())
        return Ended(self.words, self.process.returncode, *texts)


def run(*words: str | Path, within: float = PATIENCE, **environment: str) -> Ended:
    return Running(*words, **environment).wait(within)


def succeed(*words: str | Path, within: float = PATIENCE, **environment: str) -> Ended:
    ended = run(*words, within=within, **environment)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err, ended
    return ended


def refused(ended: Ended, *said: str, code: int = 1) -> None:
    """One line, no traceback, and the words that matter."""
    assert ended.code == code, ended
    assert "Traceback" not in ended.err + ended.out, ended
    for words in said:
        assert words in ended.complaint, f"{words!r} is not in the complaint of\n{ended}"


def members(group: int) -> list[int]:
    """Processes of a group that still run."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, _, its_group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state != "Z":
                    found.append(int(place.name))
    return found


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that they have."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def workers(running: Running, word: str = "spawn_main") -> list[int]:
    """Processes that a command has started to share its work; by a word of their command line."""
    found = []
    for pid in descendants(running.process.pid):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return sorted(found)


def kill_one(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waited(reached: Callable[[], object], within: float = PATIENCE, every: float = 0.002) -> bool:
    """Whether it came to be in time."""
    end = time.monotonic() + within
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


# ---- what lies in a folder -------------------------------------------------------------------------------------------


def listing(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Path, bytes and time of change of every file; those that come and go meanwhile may or may not be in it."""
    return frozenset(_listed(str(folder)))


def _listed(folder: str) -> Iterator[tuple[str, int, int]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    yield from _listed(entry.path)
                else:
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_mtime_ns


def unfinished(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".*.tmp"))


def contents(folder: Path) -> dict[str, str]:
    """Relative path to hash of every file but the lock, with measured times taken out."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): hashlib.sha256(timeless(path)).hexdigest() for path in files}


def timeless(path: Path) -> bytes:
    """A file's bytes without the seconds that something took."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_without_seconds(json.loads(data)), sort_keys=True).encode()
    if path.suffix == ".html":
        return re.sub(rb"<dt>seconds</dt><dd>[\d.]+</dd>", b"", data)
    return data


def _without_seconds(said: object) -> object:
    if isinstance(said, dict):
        return {name: _without_seconds(value) for name, value in said.items() if name != "seconds"}
    if isinstance(said, list):
        return [_without_seconds(value) for value in said]
    return said


# ---- small disks -----------------------------------------------------------------------------------------------------


class Disk:
    """A file system of its own in memory: it can be full, and it can be read-only."""

    def __init__(self, folder: Path, kilobytes: int):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _mount("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))

    def resize(self, kilobytes: int) -> None:
        _mount("mount", "-o", f"remount,size={kilobytes}k", str(self.folder))

    def may_be_written(self, allowed: bool) -> None:
        _mount("mount", "-o", f"remount,{'rw' if allowed else 'ro'}", str(self.folder))

    def used(self) -> int:
        """Kilobytes."""
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize // 1024

    def remove(self) -> None:
        _mount("umount", "-l", str(self.folder))


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as problem:
        raise OSError(f"{words[0]} is not there") from problem
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
