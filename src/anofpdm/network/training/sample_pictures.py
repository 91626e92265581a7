"""Pictures of a training run: samples of each label, and the loss by noise level."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from anofpdm.choices import Task
from anofpdm.labels import LABEL_NAMES
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.training.trainer import LEVEL_BINS, Trainer
from anofpdm.util.drawing import Line, chart, encode_png, font
from anofpdm.util.files import write_atomically
from anofpdm.util.memory import unless_out_of_memory

SAMPLES, LEVELS = "samples.png", "loss_by_level.png"
COLUMNS, CAPTION = 4, 20  # samples of each label; pixels


@torch.no_grad()
def save_pictures(trainer: Trainer, shape: Sequence[int], out: Path, steps: int) -> None:
    """Samples [C, H, W] of every label by the averaged weights, and the loss at each part of the noise range."""
    sums, counts = trainer.level_loss.cpu()
    trainer.level_loss.zero_()
    middles = (np.arange(LEVEL_BINS) + 0.5) * len(trainer.schedule) / LEVEL_BINS
    title = f"loss by noise level, step {trainer.step}"
    losses = chart([Line(middles, (sums / counts).numpy(), dots=True)], title, xlabel="noise level t")
    write_atomically(out / LEVELS, encode_png(losses))
    if trainer.config.task == Task.CLASSIFIER:
        return
    n_labels, null = trainer.network_config.n_labels, trainer.network_config.null_label
    labels = torch.arange(n_labels, device=trainer.device).repeat_interleave(COLUMNS)
    noise = torch.randn(COLUMNS, *shape, generator=torch.Generator().manual_seed(0))
    noise = noise.repeat(n_labels, 1, 1, 1).to(trainer.device)

    def predict(x: Tensor, t: int) -> Tensor:
        return trainer.average(x, torch.full((len(x),), t, device=x.device), labels)

    samples = unless_out_of_memory(lambda: sample(predict, noise, schedule=trainer.schedule, steps=steps))
    if samples is None:
        return  # training needs the memory more
    label_names = ["no label" if label == null else LABEL_NAMES[label] for label in range(n_labels)]
    captions = [f"step {trainer.step}: {name}" for name in label_names]
    grid = samples.view(n_labels, COLUMNS, *shape).cpu().numpy()
    write_atomically(out / SAMPLES, sample_grid(grid, captions))


@torch.no_grad()
def sample(predict: Callable[[Tensor, int], Tensor], noise: Tensor, *, schedule: NoiseSchedule, steps: int) -> Tensor:
    """Pure noise [N, C, H, W] -> slices in [-1, 1], by DDIM over evenly spaced levels, the noisiest included.

    `predict`: x [N, C, H, W], t -> the noise in x.
    """
    levels = [round((number + 1) * len(schedule) / steps) - 1 for number in reversed(range(steps))]
    x = noise
    for t, t_next in zip(levels, [*levels[1:], None], strict=True):
        clean = schedule.clean(x, predict(x, t), t).clamp(-1, 1)
        x = clean if t_next is None else schedule.ddim_step(x, clean, t, t_next)
    return x


def sample_grid(samples: np.ndarray, captions: Sequence[str]) -> bytes:
    """PNG of samples [rows, columns, C, H, W] in [-1, 1]; a caption over each row, modalities side by side."""
    rows, *_, height, _ = samples.shape
    strips = samples.transpose(0, 3, 1, 2, 4).reshape(rows, height, -1)
    strips = np.pad(strips, ((0, 0), (CAPTION, 0), (0, 0)), constant_values=-1)
    sheet = Image.fromarray(
        np.round((np.clip(strips, -1, 1) + 1) * 127.5).astype(np.uint8).reshape(-1, strips.shape[2])
    )
    pen = ImageDraw.Draw(sheet)
    for row, caption in enumerate(captions):
        pen.text((0, row * (CAPTION + height)), caption, 150, font())
    return encode_png(sheet)
