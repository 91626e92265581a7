"""Progress on screen: bars on a terminal; in a log file, one line per minute."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anofpdm.util.progress import Progress, silent
from anofpdm.util.text import printable

if TYPE_CHECKING:
    import torch
    from rich.progress import Progress as Bars

    from anofpdm.util.distributed import World

SECONDS_BETWEEN_LINES, SHORTEST_LOGGED_SECONDS = 60.0, 10.0
SPEED_SECONDS = 120.0  # in which the speed is measured from which the time left follows


@contextlib.contextmanager
def processes(device: "torch.device") -> Iterator[tuple["World", Progress]]:
    """The processes that torchrun started, or one; the first one shows progress."""
    from anofpdm.util.distributed import World

    world = World.from_environment(device)
    try:
        with progress_bars(world.is_main) as progress:
            yield world, progress
    finally:
        world.close()


@contextlib.contextmanager
def progress_bars(enabled: bool = True) -> Iterator[Progress]:
    """One bar per task, on stderr. Of several processes, only the first one enables them."""
    from rich import progress as rich
    from rich.console import Console

    if not enabled:
        yield silent
        return
    console = Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TextColumn("{task.percentage:3.0f}%{task.fields[left]}"),
    )
    terminal = console.is_terminal
    with rich.Progress(*columns, console=console, disable=not terminal, speed_estimate_period=SPEED_SECONDS) as bars:
        yield TaskProgress(bars)


class TaskProgress:
    """Shown by `bars`; where these are disabled, as lines: one per minute, and one at the end of a task that took a
    while."""

    def __init__(self, bars: "Bars") -> None:
        self._bars = bars
        self._last_lines: dict[str, float] = {}  # time of the last line of a task, or of its start

    def __call__(self, task: str, done: float, total: float, note: str = "") -> None:
        bar = next((bar for bar in self._bars.tasks if bar.fields["task"] == task), None)
        if bar is None:
            self._bars.add_task(task, total=None, left="", task=task)
            bar = self._bars.tasks[-1]
        now = self._bars.get_time()
        if done < bar.completed or not bar.total:  # a task that restarts is timed again
            self._bars.reset(bar.id, total=total or None)
            self._last_lines[task] = now
        finished = bool(total) and done >= total > bar.completed
        self._bars.update(bar.id, completed=done, total=total or None)
        counted = isinstance(done, int) and isinstance(total, int) and total > 0
        description = printable(note or (f"{task} {done}/{total}" if counted else task))
        left = f", {_duration(bar.time_remaining)} left" if bar.time_remaining and not bar.finished else ""
        self._bars.update(bar.id, description=description, left=left)
        if not self._bars.disable or not total:
            return
        if finished and (bar.elapsed or 0) >= SHORTEST_LOGGED_SECONDS:
            self._write(f"{description}: 100%")
        elif done < total and now - self._last_lines[task] >= SECONDS_BETWEEN_LINES:
            self._last_lines[task] = now
            self._write(f"{description}: {int(100 * done / total)}%{left}")

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # disk full, or the pipe's reader is gone: keep working
            print(line, file=self._bars.console.file, flush=True)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
