"""DDIM encoding and decoding, used by three of the comparison methods."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from anofpdm.method.guidance import PredictNoise
from anofpdm.network.schedule import NoiseSchedule

Predict = Callable[[Tensor, int], Tensor]  # x, t -> noise
HealthyGradient = Callable[[Tensor, int], Tensor]  # x, t -> gradient of log p(healthy | x_t)
SCHEDULE = NoiseSchedule.linear()


@torch.no_grad()
def encode(predict: Predict, x0: Tensor, levels: Sequence[int], noise: Tensor, *, clamp: bool = True) -> Tensor:
    """DDIM inversion through ascending levels; `noise` is added at the first level."""
    x = SCHEDULE.add_noise(x0, levels[0], noise)
    for t, above in pairwise(levels):
        x = SCHEDULE.ddim_step(x, estimate_clean(predict, x, t, clamp), t, above)
    return x


@torch.no_grad()
def decode(predict: Predict, x: Tensor, levels: Sequence[int], *, clamp: bool = True) -> Tensor:
    """DDIM sampling through descending levels to the clean slice; `levels` are ascending."""
    for t, below in pairwise(reversed(levels)):
        x = SCHEDULE.ddim_step(x, estimate_clean(predict, x, t, clamp), t, below)
    return estimate_clean(predict, x, levels[0], clamp)


def estimate_clean(predict: Predict, x: Tensor, t: int, clamp: bool) -> Tensor:
    clean = SCHEDULE.clean(x, predict(x, t), t)
    return clean.clamp(-1, 1) if clamp else clean


def with_label(predict_noise: PredictNoise, label: int) -> Predict:
    return lambda x, t: predict_noise(x, t, torch.full((len(x),), label, device=x.device))


def guide(predict: Predict, healthy_gradient: HealthyGradient, scale: float) -> Predict:
    """eps - sqrt(1 - a_t) s grad log p(healthy | x_t)."""

    def guided(x: Tensor, t: int) -> Tensor:
        _, spread = SCHEDULE.signal_and_noise(t, x)
        return predict(x, t) - spread * scale * healthy_gradient(x, t)

    return guided


def levels_up_to(top: int, count: int) -> list[int]:
    """`count` levels from 0 to `top`, evenly."""
    count = min(count, top + 1)
    return sorted({round(number * top / max(count - 1, 1)) for number in range(count)})
