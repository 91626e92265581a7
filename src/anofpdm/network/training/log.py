"""Training log: JSON lines, and tensorboard if it is installed."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from anofpdm.util.files import translate_write_errors, write_atomically

LOG = "log.jsonl"
JUMP = 4.0  # factor; single batches differ by less


class TrainingLog:
    def __init__(self, folder: Path, step: int):
        """Continues after `step`: lines that an earlier run wrote after its last save are dropped."""
        self._path = folder / LOG
        if self._path.is_file():
            kept = [json.dumps(line) + "\n" for line in read_log(folder) if line["step"] <= step]
            write_atomically(self._path, "".join(kept).encode())
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._board = None
        else:
            self._board = SummaryWriter(folder / "tensorboard", purge_step=step + 1)

    def write(self, step: int, loss: float, steps_per_second: float, note: str = "") -> None:
        line = {"step": step, "loss": loss, "steps_per_second": steps_per_second} | ({"note": note} if note else {})
        with translate_write_errors(self._path), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self._board is not None:
            self._board.add_scalar("loss", loss, step)
            self._board.add_scalar("steps per second", steps_per_second, step)
            self._board.flush()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Lines of a model's log: step, loss, steps_per_second. Without an incomplete last line of a killed run."""
    log = folder / LOG
    lines = log.read_text().splitlines() if log.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def minutes_trained(folder: Path) -> float:
    """Time spent on the steps in the log, over all runs."""
    before, seconds = 0, 0.0
    for line in read_log(folder):
        seconds += (line["step"] - before) / max(line["steps_per_second"], 1e-9)
        before = line["step"]
    return seconds / 60


@dataclass(frozen=True)
class Jump:
    """The loss rose to a multiple of its value: a diverging step that undid much of the training."""

    step: int
    before: float
    after: float


def loss_jump(folder: Path) -> Jump | None:
    """The first in a log, by medians of the 20 lines before and the 5 after; at the end of the log, of at least 3."""
    lines = read_log(folder)
    losses = [line["loss"] for line in lines]
    for now in range(20, len(lines) - 2):
        before, after = median(losses[now - 20 : now]), median(losses[now : now + 5])
        if after > JUMP * before:
            first = next(line for line in lines[now:] if line["loss"] > JUMP * before)
            return Jump(first["step"], before, after)
    return None
