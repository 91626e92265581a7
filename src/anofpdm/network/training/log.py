"""Training log: JSON lines, and tensorboard if it is installed."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from anofpdm.util.files import translate_write_errors, write_atomically

LOG = "log.jsonl"
JUMP = 4.0  # factor; single batches differ by less


@dataclass(frozen=True)
class TrainingStatus:
    step: int
    loss: float
    steps_per_second: float
    fraction_done: float  # of the run, 0 to 1
    note: str = ""

    def __str__(self) -> str:
        return f"step {self.step}  loss {self.loss:.4f}  {self.steps_per_second:.1f}/s  {self.note}".rstrip()


class TrainingLog:
    def __init__(self, folder: Path, step: int):
        """Continues after `step`: lines that an earlier run wrote after its last save are dropped."""
        self._path = folder / LOG
        if self._path.is_file():
            kept = [json.dumps(line) + "\n" for line in _lines(self._path) if line["step"] <= step]
            write_atomically(self._path, "".join(kept).encode())
        self._board = _tensorboard(folder, step)

    def write(self, status: TrainingStatus) -> None:
        line = {name: value for name, value in asdict(status).items() if name != "fraction_done" and value != ""}
        with translate_write_errors(self._path), self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self._board is not None:
            self._board.add_scalar("loss", status.loss, status.step)
            self._board.add_scalar("steps per second", status.steps_per_second, status.step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Lines of a model's log: step, loss, steps_per_second."""
    return _lines(folder / LOG)


def minutes_trained(folder: Path) -> float:
    """Time spent on the steps in the log, over all runs."""
    lines, before, seconds = read_log(folder), 0, 0.0
    for line in lines:
        seconds += (line["step"] - before) / max(line["steps_per_second"], 1e-9)
        before = line["step"]
    return seconds / 60


def _lines(log: Path) -> list[dict[str, Any]]:
    """Without an incomplete last line of a killed run."""
    lines = log.read_text().splitlines() if log.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)


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
        old, new = median(losses[now - 20 : now]), median(losses[now : now + 5])
        if new > JUMP * old:
            first = next(line for line in lines[now:] if line["loss"] > JUMP * old)
            return Jump(first["step"], old, new)
    return None
