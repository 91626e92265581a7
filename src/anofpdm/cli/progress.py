"""How far a longer command has come: bars on a terminal; in the log of a job, which has none, a line a minute."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Protocol

from anofpdm.util.text import printable

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES, WORTH_A_LINE_SECONDS = 60.0, 10.0


class Show(Protocol):
    """`words` stand in the place of what is done: a scan's name, a loss. A total of 0 is not known yet."""

    def __call__(self, what: str, done: float, total: float, words: str = "") -> None: ...


@contextlib.contextmanager
def progress_bars(leads: bool = True) -> Iterator[Show]:
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
    with progress_bars() as show:
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
            progress.update(tasks[what], completed=done, total=total or None, description=printable(words or what))

        yield show


class Lines:
    """A line a minute, and one at the end of what took a while; what begins anew is timed anew."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.clock = file, clock
        self.timed: dict[str, _Timed] = {}

    def __call__(self, what: str, done: float, total: float, words: str = "") -> None:
        if not total:
            return
        now, timed = self.clock(), self.timed.get(what)
        if timed is None or done < timed.done:
            timed = self.timed[what] = _Timed(now, done)
        finished = done >= total > timed.done
        timed.note(now, done)
        if finished and now - timed.began >= WORTH_A_LINE_SECONDS:
            self._say(f"{words or what}: 100%")
        elif done < total and now - timed.written >= SECONDS_BETWEEN_LINES:
            timed.written = now
            self._say(f"{words or what}: {int(100 * done / total)}%, {_duration(timed.left(total))} left")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk under the log, or nobody who reads it
            print(printable(line), file=self.file, flush=True)


class _Timed:
    """How much was done when, once a second."""

    def __init__(self, now: float, done: float) -> None:
        self.began = self.written = now
        self.done = done
        self.seen = collections.deque([(now, done)], maxlen=1000)

    def note(self, now: float, done: float) -> None:
        self.done = done
        if int(now) == int(self.seen[-1][0]):
            self.seen.pop()
        self.seen.append((now, done))

    def left(self, total: float) -> float:
        """By the second half of the time: what was done before is passed over in the first moments."""
        now, done = self.seen[-1]
        half = (self.began + now) / 2
        start, already = next(((when, what) for when, what in reversed(self.seen) if when <= half), self.seen[0])
        if done <= already:
            start, already = self.seen[0]
        return (now - start) * (total - done) / (done - already) if done > already else float("inf")


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "unknown time"
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
