"""Progress on screen: bars on a terminal; in a log file, one line per minute."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

from anofpdm.util.progress import Progress, silent
from anofpdm.util.text import printable

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_BETWEEN_LINES, SHORTEST_LOGGED_SECONDS = 60.0, 10.0


@contextlib.contextmanager
def progress_bars(enabled: bool = True) -> Iterator[Progress]:
    """One bar per task, on stderr. Of several processes, only the first one enables them."""
    from rich.console import Console

    console = Console(stderr=True)
    if not enabled:
        yield silent
    elif console.is_terminal:
        with _terminal_bars(console) as progress:
            yield progress
    else:
        yield LogProgress(console.file)


@contextlib.contextmanager
def _terminal_bars(console: "Console") -> Iterator[Progress]:
    from rich import progress as rich

    text = rich.TextColumn("{task.description}", markup=False)
    columns = (text, rich.BarColumn(), rich.TextColumn("{task.percentage:3.0f}%{task.fields[left]}"))
    with rich.Progress(*columns, console=console) as bars:
        tasks: dict[str, rich.TaskID] = {}
        timers: dict[str, _TaskTimer] = {}

        def update(task: str, done: float, total: float, note: str = "") -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=None, left="")
            if total and (task not in timers or done < timers[task].done):
                timers[task] = _TaskTimer(time.monotonic(), done)
            left = ""
            if total:
                timers[task].record(time.monotonic(), done)
                left = _left(timers[task].remaining(total))
            description = _description(task, done, total, note)
            bars.update(tasks[task], completed=done, total=total or None, description=description, left=left)

        yield update


class LogProgress:
    """A line per minute, and one at the end of a task that took a while; a task that restarts is timed again."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.clock = file, clock
        self.timers: dict[str, _TaskTimer] = {}

    def __call__(self, task: str, done: float, total: float, note: str = "") -> None:
        if not total:
            return
        now, timer = self.clock(), self.timers.get(task)
        if timer is None or done < timer.done:
            timer = self.timers[task] = _TaskTimer(now, done)
        finished = done >= total > timer.done
        timer.record(now, done)
        description = _description(task, done, total, note)
        if finished and now - timer.start >= SHORTEST_LOGGED_SECONDS:
            self._write(f"{description}: 100%")
        elif done < total and now - timer.last_line >= SECONDS_BETWEEN_LINES:
            timer.last_line = now
            self._write(f"{description}: {int(100 * done / total)}%{_left(timer.remaining(total))}")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # disk full, or the pipe's reader is gone: keep working
            print(line, file=self.file, flush=True)


class _TaskTimer:
    """How much was done at which time, at most once per second."""

    def __init__(self, now: float, done: float) -> None:
        self.start = self.last_line = now
        self.done = done
        self.samples = collections.deque([(now, done)], maxlen=1000)

    def record(self, now: float, done: float) -> None:
        self.done = done
        if int(now) == int(self.samples[-1][0]):
            self.samples.pop()
        self.samples.append((now, done))

    def remaining(self, total: float) -> float | None:
        """Seconds, from the speed in the second half of the time: resumed work is skipped in the first moments. None
        unless the speeds in the third and the last quarter are within a factor of two."""
        now, done = self.samples[-1]
        (since, before), (middle, halfway) = (self._sample_at(share) for share in (0.5, 0.75))
        if not before < halfway < done or not since < middle < now:
            return None
        third, last = (halfway - before) / (middle - since), (done - halfway) / (now - middle)
        return (now - since) * (total - done) / (done - before) if 0.5 <= third / last <= 2 else None

    def _sample_at(self, share: float) -> tuple[float, float]:
        """The last one before this share of the time since the start."""
        then = self.start + share * (self.samples[-1][0] - self.start)
        return next((sample for sample in reversed(self.samples) if sample[0] <= then), self.samples[0])


def _description(task: str, done: float, total: float, note: str) -> str:
    counted = isinstance(done, int) and isinstance(total, int) and total > 0
    return printable(note or (f"{task} {done}/{total}" if counted else task))


def _left(seconds: float | None) -> str:
    """Nothing before the time can be known."""
    return "" if seconds is None else f", {_duration(seconds)} left"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
