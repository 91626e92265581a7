"""Progress reports: the one callback that long-running functions take."""

from typing import Protocol


class Progress(Protocol):
    def __call__(self, task: str, done: float, total: float, note: str = "") -> None:
        """`done` of `total` steps of `task`; total 0 means not known yet. On screen, a note replaces the task's name
        and count."""


def silent(task: str, done: float, total: float, note: str = "") -> None:
    """Reports nothing."""


def portion(progress: Progress, start: float, share: float) -> Progress:
    """Progress of a part of a larger task: `share` of the whole, after `start` of it."""

    def report(task: str, done: float, total: float, note: str = "") -> None:
        if total:
            progress(task, start * total + share * done, total, note)

    return report
