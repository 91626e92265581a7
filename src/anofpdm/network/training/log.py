"""What a run says of itself: JSON lines always, tensorboard where it is installed."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from anofpdm.util.files import translate_write_errors, write_atomically

LOG = "log.jsonl"
JUMP = 4.0  # times what it was: single batches differ by less


@dataclass(frozen=True)
class Progress:
    step: int
    loss: float
    steps_per_second: float
    share: float  # of the run, 0 to 1
    note: str = ""


class TrainingLog:
    def __init__(self, folder: Path, step: int):
        """Goes on after `step`: what an earlier run wrote beyond the save it is resumed from is dropped."""
        self._path = folder / LOG
        _forget_later(self._path, step)
        self._board = _tensorboard(folder, step)

    def write(self, progress: Progress) -> None:
        line: dict[str, object] = {
            "step": progress.step,
            "loss": progress.loss,
            "steps_per_second": progress.steps_per_second,
        }
        if progress.note:
            line["note"] = progress.note
        with translate_write_errors(self._path), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self._board is not None:
            self._board.add_scalar("loss", progress.loss, progress.step)
            self._board.add_scalar("steps per second", progress.steps_per_second, progress.step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _forget_later(log: Path, step: int) -> None:
    if log.is_file():
        kept = [json.dumps(line) + "\n" for line in _lines(log) if line["step"] <= step]
        write_atomically(log, "".join(kept).encode())


def _lines(log: Path) -> list[dict[str, Any]]:
    """Without the one that a killed run did not finish."""
    said = log.read_text().splitlines() if log.is_file() else []
    return [json.loads(line) for line in said if line.endswith("}")]


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)


@dataclass(frozen=True)
class Jump:
    """Where the loss rose to many times what it was: a step went too far, and much of what was learned is lost."""

    step: int
    before: float
    after: float


def loss_jump(folder: Path, *, before: int = 20, after: int = 5, least: int = 3) -> Jump | None:
    """The first in a run's log, by medians of so many lines before and after; at its end fewer must do."""
    lines = _lines(folder / LOG)
    losses = [line["loss"] for line in lines]
    for now in range(before, len(lines) - least + 1):
        was, found = median(losses[now - before : now]), median(losses[now : now + after])
        if found > JUMP * was:
            at = next(line for line in lines[now:] if line["loss"] > JUMP * was)
            return Jump(at["step"], was, found)
    return None
