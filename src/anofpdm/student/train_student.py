"""Student training. Every step is determined by the seed and the step's number."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.errors import ConfigError, TrainingError
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.network.fast.cpu import fast_gradients
from anofpdm.network.training.base_trainer import BaseTrainer
from anofpdm.network.training.training_config import StopLimits
from anofpdm.student.student_batches import PseudoLabels, StudentBatch, training_batches
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.util.progress import Progress, silent

WARM_UP = 50  # steps
AVERAGE = 0.999  # decay of the weights' moving average
LABEL_SHARE = 0.2  # weight of the loss on image-level labels
VIEW_SHARE = 0.2  # weight of the slice output in the difference between views of a slice
LATE_FROM = 0.6  # part of training after which modalities join on which pseudo-labels are not based
REPORT_STEPS = 20


@dataclass(frozen=True)
class StudentTrainingConfig(StopLimits):
    steps: int | None = 3000
    batch: int = 32
    learning_rate: float = 1e-3
    seed: int = 0
    thick_slices: bool = False  # train on each slice also as in a scan with thicker slices, with the same mask for both

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1 or not self.learning_rate > 0:
            raise ConfigError(f"batch size and learning rate must be greater than 0, got {self}")


def train_student(
    config: StudentConfig,
    data: PseudoLabels,
    training: StudentTrainingConfig,
    device: torch.device,
    progress: Progress = silent,
) -> StudentNet:
    """The network with the moving average of its weights. With more inputs a network learns the errors of its targets
    sooner, so modalities that the pseudo-labels are not based on join late."""
    torch.manual_seed(training.seed)
    network = StudentNet(config)
    late = torch.zeros(1 + len(config.neighbours_mm), len(config.modalities), dtype=torch.bool)
    late[:, list(data.late)] = True
    late = late.flatten()
    with torch.no_grad():
        next(network.down.parameters())[:, late] = 0
    trainer = StudentTrainer(network, training, device)
    batches = training_batches(data, training.batch, training.seed, device, thick_slices=training.thick_slices)
    late = late.to(device)
    start, done = time.monotonic(), 0.0
    for step, batch in enumerate(batches, start=1):
        if done < LATE_FROM:  # as if all scans lacked them
            batch = batch._replace(missing=batch.missing | late)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # a handful of shapes: choose kernels once
            loss = trainer.update(batch, step, done)
        done = training.fraction_done(step, time.monotonic() - start)
        if step % REPORT_STEPS == 0 or done >= 1:
            if not math.isfinite(float(loss)):
                raise TrainingError(f"non-finite loss of the student at step {step}; lower --learning-rate")
            progress("Student training", min(done, 1.0), 1.0, f"Student training, loss {float(loss):.4f}")
        if done >= 1:
            break
    return trainer.average.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


class StudentTrainer(BaseTrainer):
    def __init__(self, network: nn.Module, training: StudentTrainingConfig, device: torch.device):
        self.training = training
        memory_format = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        network = network.to(device).to(memory_format=memory_format)  # type: ignore[call-overload]
        super().__init__(network, training.learning_rate, AVERAGE, weight_decay=1e-4)

    def update(self, batch: StudentBatch, step: int, done: float) -> Tensor:
        """Step number `step`, from 1, after a part of the training; returns the loss. The learning rate warms up, and
        falls to 0 with half a cosine."""
        share = min(1.0, step / WARM_UP) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return self.optimise(batch, self.training.learning_rate * share, step)

    def compute_step(self, *inputs: Tensor) -> Tensor:
        x, mask, labels = StudentBatch(*inputs).augment()
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda, cache_enabled=False):
            pixel_logits, slice_logits = (logits.float() for logits in self.network(x))
        loss = mask_loss(pixel_logits, mask) + LABEL_SHARE * label_loss(slice_logits, labels)
        if self.training.thick_slices:
            loss = loss + view_loss(pixel_logits, slice_logits)
        self.optimiser.zero_grad()
        with fast_gradients(loss.device):
            loss.backward()
        self.optimiser.step()
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


def view_loss(pixel_logits: Tensor, slice_logits: Tensor) -> Tensor:
    """Difference between two views of the same slices, the halves of a batch: one minus the DICE of probabilities, and
    a share of the distance between the slices' logits."""
    first, second = pixel_logits.sigmoid().chunk(2)
    agreement = 2 * (first * second).sum() / (first.square() + second.square()).sum().clamp(min=1)
    slice_first, slice_second = slice_logits.chunk(2)
    return 1 - agreement + VIEW_SHARE * F.smooth_l1_loss(slice_first, slice_second)
