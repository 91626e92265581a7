"""What a run says of itself: JSON lines always, tensorboard where it is installed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anofpdm.files import being_written, write_atomically

LOG = "log.jsonl"


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
        with being_written(self._path), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self._board is not None:
            self._board.add_scalar("loss", progress.loss, progress.step)
            self._board.add_scalar("steps per second", progress.steps_per_second, progress.step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _forget_later(log: Path, step: int) -> None:
    if log.is_file():
        kept = [
            line for line in log.read_text().splitlines() if line.endswith("}") and json.loads(line)["step"] <= step
        ]
        write_atomically(log, "".join(line + "\n" for line in kept).encode())


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
