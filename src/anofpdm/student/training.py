"""Teaching the student. Every step follows from the seed and the step's number."""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anofpdm.errors import ConfigError, TrainingError
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.student.network import StudentConfig, StudentNet
from anofpdm.student.targets import Lessons

WARM_UP = 50  # steps
AVERAGE = 0.999  # decay of the weights' moving average
LABEL_SHARE = 0.2  # of the loss on what a person said of the whole slice


@dataclass(frozen=True)
class Schooling:
    steps: int | None = 3000
    minutes: float | None = None  # whichever ends first
    batch: int = 32
    learning_rate: float = 1e-3
    seed: int = 0
    label_share: float = LABEL_SHARE

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--minutes {self.minutes:g}: learning takes some time; give more than 0")
        if self.steps is None and self.minutes is None:
            raise ConfigError("say how long the student learns: --steps or --minutes")
        if self.batch < 1 or not self.learning_rate > 0:
            raise ConfigError(f"impossible settings for a student: {self}")


Listener = Callable[[float, float], None]  # share that is done, loss


def teach(
    config: StudentConfig,
    lessons: Lessons,
    schooling: Schooling,
    device: torch.device,
    on_progress: Listener = lambda _share, _loss: None,
) -> StudentNet:
    """The student that the average of its late weights is."""
    torch.manual_seed(schooling.seed)
    network = StudentNet(config).to(device).train()
    average = copy.deepcopy(network)
    optimiser = torch.optim.AdamW(network.parameters(), schooling.learning_rate, weight_decay=1e-4)
    start = time.monotonic()
    share = 0.0
    for step, (rows, shown) in enumerate(_read_ahead(lessons, schooling)):
        set_rate(optimiser, schooling.learning_rate, step, share)
        generator = torch.Generator().manual_seed(schooling.seed * 1_000_003 + step)
        x, mask = lessons.batch(rows, shown, generator, device)
        labels = torch.from_numpy(lessons.labels[rows]).to(device)
        loss = _learn(network, optimiser, x, mask, labels, schooling.label_share)
        _follow(average, network, step + 1)
        share = share_done(schooling, step + 1, time.monotonic() - start)
        if (step + 1) % 20 == 0 or share >= 1:
            if not math.isfinite(float(loss)):
                raise TrainingError(f"the student's loss is no number at step {step + 1}; lower --learning-rate")
            on_progress(share, float(loss))
        if share >= 1:
            break
    return average.eval()


def _read_ahead(lessons: Lessons, schooling: Schooling) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and slices of every step; those of the next are read while one is learned."""
    with ThreadPoolExecutor(1) as reader:

        def read(step: int) -> tuple[np.ndarray, np.ndarray]:
            rows = rows_of_step(len(lessons), step, schooling)
            return rows, lessons.inputs(rows)

        coming = reader.submit(read, 0)
        for step in itertools.count(1):
            now = coming.result()
            coming = reader.submit(read, step)
            yield now


def _learn(
    network: StudentNet, optimiser: torch.optim.Optimizer, x: Tensor, mask: Tensor, labels: Tensor, label_share: float
) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        odds, whole = network(x)
    loss = lesson_loss(odds.float(), mask) + label_share * label_loss(whole.float(), labels)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    optimiser.step()
    return loss.detach()


def lesson_loss(odds: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of every pixel, and one minus the DICE of the batch: lesions are few pixels among many."""
    chance = odds.sigmoid()
    overlap = 2 * (chance * mask).sum() / (chance.sum() + mask.sum()).clamp(min=1)
    return F.binary_cross_entropy_with_logits(odds, mask) + 1 - overlap


def label_loss(whole: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the slices that a person said something of."""
    said = labels != NULL
    wanted = (labels == UNHEALTHY).float()
    loss = F.binary_cross_entropy_with_logits(whole, wanted, reduction="none")
    return (loss * said).sum() / said.sum().clamp(min=1)


def rows_of_step(count: int, step: int, schooling: Schooling) -> np.ndarray:
    """[batch]: every slice once a round, in an order drawn anew each time."""
    places = np.arange(step * schooling.batch, (step + 1) * schooling.batch)
    rows = np.empty(len(places), dtype=np.int64)
    for epoch in np.unique(places // count):
        order = np.random.default_rng([schooling.seed, int(epoch)]).permutation(count)
        here = places // count == epoch
        rows[here] = order[places[here] % count]
    return rows


def set_rate(optimiser: torch.optim.Optimizer, rate: float, step: int, share: float) -> None:
    """Rises over the first steps, falls along a half cosine to nothing."""
    now = rate * min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * min(share, 1.0))) / 2
    for group in optimiser.param_groups:
        group["lr"] = now


def share_done(schooling: Schooling, step: int, seconds: float) -> float:
    shares = [step / schooling.steps] if schooling.steps else []
    return max([*shares, *([seconds / 60 / schooling.minutes] if schooling.minutes else [])])


@torch.no_grad()
def _follow(average: StudentNet, network: StudentNet, step: int) -> None:
    decay = min(AVERAGE, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
