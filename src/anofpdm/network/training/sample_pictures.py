"""Pictures of a training run: samples of each label, and the loss by noise level."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from anofpdm.labels import LABEL_NAMES
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.training.trainer import LEVEL_BINS, Trainer
from anofpdm.options import Task
from anofpdm.util.drawing import BACKGROUND, BLUE, FOREGROUND, MUTED, encode_png, font
from anofpdm.util.files import write_atomically

SAMPLES, LEVELS = "samples.png", "loss_by_level.png"
GAP, CAPTION = 6, 20


@torch.no_grad()
def save_pictures(trainer: Trainer, shape: Sequence[int], out: Path, steps: int, columns: int = 4) -> None:
    """Samples [C, H, W] of every label by the averaged weights, and the loss at each part of the noise range."""
    sums, counts = trainer.level_loss.cpu()
    trainer.level_loss.zero_()
    width = len(trainer.schedule) // LEVEL_BINS
    names = [f"{number * width}+" for number in range(LEVEL_BINS)]
    write_atomically(out / LEVELS, bars((sums / counts).tolist(), names, f"loss by noise level, step {trainer.step}"))
    if trainer.config.task == Task.CLASSIFIER:
        return
    network = trainer.averaged_network()
    n_labels, null = network.config.n_labels, network.config.null_label
    labels = torch.arange(n_labels, device=trainer.device).repeat_interleave(columns)
    noise = torch.randn(1, columns, *shape, generator=torch.Generator().manual_seed(0))
    noise = noise.expand(n_labels, columns, *shape).flatten(0, 1).to(trainer.device)

    def predict(x: Tensor, t: int) -> Tensor:
        return network(x, torch.full((len(x),), t, device=x.device), labels)

    try:
        samples = sample(predict, noise, schedule=trainer.schedule, steps=steps)
    except torch.OutOfMemoryError:
        return  # training needs the memory more
    label_names = ["no label" if label == null else LABEL_NAMES[label] for label in range(n_labels)]
    captions = [f"step {trainer.step}: {name}" for name in label_names]
    grid = samples.view(n_labels, columns, *shape).cpu().numpy()
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
    rows, columns, channels, height, width = samples.shape
    block = channels * width + GAP
    sheet = Image.new("RGB", (GAP + columns * block, GAP + rows * (height + CAPTION + GAP)), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for row in range(rows):
        top = GAP + row * (height + CAPTION + GAP)
        pen.text((GAP, top), captions[row], MUTED, font())
        for column in range(columns):
            strip = np.concatenate(list(samples[row, column]), axis=1)  # [H, C * W]
            grey = np.round((np.clip(strip, -1, 1) + 1) * 127.5).astype(np.uint8)
            sheet.paste(Image.fromarray(grey).convert("RGB"), (GAP + column * block, top + CAPTION))
    return encode_png(sheet)


def bars(heights: Sequence[float], names: Sequence[str], title: str) -> bytes:
    """PNG of a bar chart; non-finite values are left out."""
    width, height, base = 56, 160, 220
    sheet = Image.new("RGB", (GAP * 2 + width * len(heights), base + 30), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, GAP), title, FOREGROUND, font())
    highest = max((h for h in heights if np.isfinite(h)), default=1.0) or 1.0
    for number, (value, name) in enumerate(zip(heights, names, strict=True)):
        left = GAP + number * width
        pen.text((left + 4, base + 6), name, MUTED, font())
        if np.isfinite(value):
            top = base - height * value / highest
            pen.rectangle((left + 4, top, left + width - 4, base), BLUE)
            pen.text((left + 4, top - 16), f"{value:.3g}", FOREGROUND, font())
    return encode_png(sheet)
