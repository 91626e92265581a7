"""DDIM encoding and decoding, used by three of the comparison methods."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from anofpdm.network.schedule import NoiseSchedule

Predict = Callable[[Tensor, int], Tensor]  # x, t -> noise


@torch.no_grad()
def encode(
    predict: Predict, x0: Tensor, levels: Sequence[int], *, noise: Tensor, schedule: NoiseSchedule, clamp: bool = True
) -> Tensor:
    """DDIM inversion through ascending levels; `noise` is added at the first level."""
    x = schedule.add_noise(x0, levels[0], noise)
    for t, above in pairwise(levels):
        x = schedule.ddim_step(x, estimate_clean(predict, x, t, schedule, clamp), t, above)
    return x


@torch.no_grad()
def decode(
    predict: Predict, x: Tensor, levels: Sequence[int], *, schedule: NoiseSchedule, clamp: bool = True
) -> Tensor:
    """DDIM sampling through descending levels to the clean slice."""
    for t, below in pairwise(reversed(levels)):
        x = schedule.ddim_step(x, estimate_clean(predict, x, t, schedule, clamp), t, below)
    return estimate_clean(predict, x, levels[0], schedule, clamp)


def estimate_clean(predict: Predict, x: Tensor, t: int, schedule: NoiseSchedule, clamp: bool) -> Tensor:
    clean = schedule.clean(x, predict(x, t), t)
    return clean.clamp(-1, 1) if clamp else clean


def levels_up_to(top: int, count: int) -> list[int]:
    """`count` levels from 0 to `top`, evenly."""
    count = min(count, top + 1)
    return sorted({round(number * top / max(count - 1, 1)) for number in range(count)})
