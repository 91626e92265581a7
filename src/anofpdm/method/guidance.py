"""What the network is asked at every noise level, and what its two answers say of the slice behind the noise."""

from collections.abc import Callable

import torch
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL
from anofpdm.network.schedule import NoiseSchedule

PredictNoise = Callable[[Tensor, int, Tensor], Tensor]  # x [N, C, H, W], t, labels [N] -> noise [N, C, H, W]
NoisePair = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # x, t -> noise for HEALTHY, noise for NULL


def noise_pair(predict_noise: PredictNoise) -> NoisePair:
    """Both questions as one batch of 2N: the only two evaluations that a level needs."""

    def both(x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([HEALTHY, NULL]).repeat_interleave(len(x)).to(x.device, non_blocking=True)
        healthy, unguided = predict_noise(torch.cat([x, x]), t, labels).to(x.dtype).contiguous().chunk(2)
        return healthy, unguided

    return both


def guided(
    x: Tensor, healthy: Tensor, unguided: Tensor, t: int, *, strengths: Tensor, schedule: NoiseSchedule
) -> Tensor:
    """The slice behind x if it were healthy: x [N, C, H, W], strengths [W] -> [N, W, C, H, W].

    (x - s ((1 + w) e_h - w e_0)) / a, written as the unguided estimate less (1 + w) times one difference. The
    difference is small against either answer, so it is taken first, and no strength needs another look at x.
    """
    signal, spread = schedule.signal_and_noise(t, x)
    step = (healthy - unguided) * (spread / signal)
    weight = (1 + strengths.to(x)).view(-1, 1, 1, 1)
    return schedule.clean(x, unguided, t)[:, None] - weight * step[:, None]
