"""Student training. Every step is determined by the seed and the step's number."""

import copy
import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anofpdm.errors import ConfigError, TrainingError
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.network.cpu import fast_gradients
from anofpdm.student.network import StudentConfig, StudentNet
from anofpdm.student.targets import PseudoLabels
from anofpdm.util.progress import Progress, silent

WARM_UP = 50  # steps
AVERAGE = 0.999  # decay of the weights' moving average
LABEL_SHARE = 0.2  # weight of the loss on image-level labels
REPORT_STEPS = 20


@dataclass(frozen=True)
class StudentTrainingConfig:
    steps: int | None = 3000
    minutes: float | None = None  # whichever ends first
    batch: int = 32
    learning_rate: float = 1e-3
    seed: int = 0
    label_share: float = LABEL_SHARE

    def __post_init__(self) -> None:
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--minutes {self.minutes:g}: must be more than 0")
        if self.steps is None and self.minutes is None:
            raise ConfigError("no training time given; use --steps or --minutes")
        if self.batch < 1 or not self.learning_rate > 0:
            raise ConfigError(f"batch size and learning rate must be greater than 0, got {self}")

    def fraction_done(self, step: int, seconds: float) -> float:
        fractions = [step / self.steps] if self.steps else []
        return max([*fractions, *([seconds / 60 / self.minutes] if self.minutes else [])])


def train_student(
    config: StudentConfig,
    data: PseudoLabels,
    training: StudentTrainingConfig,
    device: torch.device,
    progress: Progress = silent,
) -> StudentNet:
    """The network with the moving average of its weights."""
    torch.manual_seed(training.seed)
    network = StudentNet(config).to(device).train()
    average = copy.deepcopy(network)
    optimiser = torch.optim.AdamW(network.parameters(), training.learning_rate, weight_decay=1e-4)
    start = time.monotonic()
    done = 0.0
    for step, (rows, inputs) in enumerate(_read_ahead(data, training)):
        set_learning_rate(optimiser, training.learning_rate, step, done)
        generator = torch.Generator().manual_seed(training.seed * 1_000_003 + step)
        x, mask = data.augmented_batch(rows, inputs, generator, device)
        labels = torch.from_numpy(data.labels[rows]).to(device)
        loss = _update(network, optimiser, x, mask, labels, training.label_share)
        _update_average(average, network, step + 1)
        done = training.fraction_done(step + 1, time.monotonic() - start)
        if (step + 1) % REPORT_STEPS == 0 or done >= 1:
            if not math.isfinite(float(loss)):
                raise TrainingError(f"non-finite loss of the student at step {step + 1}; lower --learning-rate")
            progress("Student training", min(done, 1.0), 1.0, f"Student training, loss {float(loss):.4f}")
        if done >= 1:
            break
    return average.eval()


def _read_ahead(data: PseudoLabels, training: StudentTrainingConfig) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and inputs of every step; those of the next step are read in the background."""
    with ThreadPoolExecutor(1) as reader:

        def read(step: int) -> tuple[np.ndarray, np.ndarray]:
            rows = rows_of_step(len(data), step, training)
            return rows, data.inputs(rows)

        pending = reader.submit(read, 0)
        for step in itertools.count(1):
            current = pending.result()
            pending = reader.submit(read, step)
            yield current


def _update(
    network: StudentNet, optimiser: torch.optim.Optimizer, x: Tensor, mask: Tensor, labels: Tensor, label_share: float
) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        pixel_logits, slice_logits = network(x)
    loss = mask_loss(pixel_logits.float(), mask) + label_share * label_loss(slice_logits.float(), labels)
    optimiser.zero_grad(set_to_none=True)
    with fast_gradients(loss.device):
        loss.backward()
    optimiser.step()
    return loss.detach()


def mask_loss(logits: Tensor, mask: Tensor) -> Tensor:
    """Cross entropy of every pixel, and one minus the DICE of the batch: lesions are few pixels among many."""
    probability = logits.sigmoid()
    overlap = 2 * (probability * mask).sum() / (probability.sum() + mask.sum()).clamp(min=1)
    return F.binary_cross_entropy_with_logits(logits, mask) + 1 - overlap


def label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the labelled slices."""
    labelled = labels != NULL
    target = (labels == UNHEALTHY).float()
    loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (loss * labelled).sum() / labelled.sum().clamp(min=1)


def rows_of_step(count: int, step: int, training: StudentTrainingConfig) -> np.ndarray:
    """[batch]: every slice once per epoch, reshuffled each time."""
    positions = np.arange(step * training.batch, (step + 1) * training.batch)
    rows = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(positions // count):
        order = np.random.default_rng([training.seed, int(epoch)]).permutation(count)
        here = positions // count == epoch
        rows[here] = order[positions[here] % count]
    return rows


def set_learning_rate(optimiser: torch.optim.Optimizer, highest: float, step: int, done: float) -> None:
    """Linear warm-up, then half a cosine down to 0."""
    rate = highest * min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    for group in optimiser.param_groups:
        group["lr"] = rate


@torch.no_grad()
def _update_average(average: StudentNet, network: StudentNet, step: int) -> None:
    decay = min(AVERAGE, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
