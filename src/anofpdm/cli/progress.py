"""How far a longer command has come: bars on a terminal; in the log of a job, which has none, a line a minute."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Protocol

from anofpdm.cli.options import one_line

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES = 60.0


class Show(Protocol):
    """`words` stand in the place of what is done: a scan's name, a loss. A total of 0 is not known yet."""

    def __call__(self, what: str, done: float, total: float, words: str = "") -> None: ...


@contextlib.contextmanager
def named_bars(leads: bool = True) -> Iterator[Show]:
    """A bar for each thing that is done; on the first process alone."""
    from rich.console import Console

    console = Console(stderr=True)
    if not leads:
        yield lambda what, done, total, words="": None  # noqa: ARG005
    elif console.is_terminal:
        with _bars(console) as show:
            yield show
    else:
        yield Lines(console.file)


@contextlib.contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function (done, total) for a command that does one thing."""
    with named_bars() as show:
        show(what, 0, 0)
        yield lambda done, total: show(what, done, total, f"{what} {done}/{total}")


@contextlib.contextmanager
def _bars(console: "Console") -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    words_column = TextColumn("{task.description}", markup=False)
    columns = (words_column, BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: float, total: float, words: str = "") -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=None)
            progress.update(tasks[what], completed=done, total=total or None, description=one_line(words or what))

        yield show


class Lines:
    """A line a minute, and one when a thing is done; what begins anew is timed anew."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.clock = file, clock
        self.began: dict[str, tuple[float, float]] = {}  # when, and how much was done by then
        self.last: dict[str, tuple[float, float]] = {}  # when a line was written, and how much was done at last

    def __call__(self, what: str, done: float, total: float, words: str = "") -> None:
        if not total:
            return
        now = self.clock()
        written, before = self.last.get(what, (now, done))
        if what not in self.began or done < before:
            self.began[what] = now, done
            written, before = now, min(done, before)
        finished = done >= total and (before < total or what not in self.last)
        if finished or (done < total and now - written >= SECONDS_BETWEEN_LINES):
            left = f", {_duration(self._left(what, done, total, now))} left" if done < total else ""
            print(f"{one_line(words or what)}: {100 * done / total:.0f}%{left}", file=self.file, flush=True)
            written = now
        self.last[what] = written, done

    def _left(self, what: str, done: float, total: float, now: float) -> float:
        began, already = self.began[what]
        return (now - began) * (total - done) / (done - already) if done > already else float("inf")


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "unknown time"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
