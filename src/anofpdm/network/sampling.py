"""Sampling of new slices, to inspect a network in training."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anofpdm.network.schedule import NoiseSchedule

PredictNoise = Callable[[Tensor, int, Tensor], Tensor]  # x [N, C, H, W], t, labels [N] -> noise [N, C, H, W]


@torch.no_grad()
def sample(
    predict_noise: PredictNoise, noise: Tensor, labels: Tensor, *, schedule: NoiseSchedule, steps: int
) -> Tensor:
    """Pure noise [N, C, H, W] -> slices in [-1, 1], by DDIM over evenly spaced levels."""
    levels = evenly_spaced(len(schedule), steps)[::-1]
    x = noise
    for t, t_next in zip(levels, [*levels[1:], None], strict=True):
        clean = schedule.clean(x, predict_noise(x, t, labels), t).clamp(-1, 1)
        x = clean if t_next is None else schedule.ddim_step(x, clean, t, t_next)
    return x


def evenly_spaced(total: int, count: int) -> Sequence[int]:
    """`count` levels of 0 .. total - 1, the last one included."""
    return [round((number + 1) * total / count) - 1 for number in range(count)]
