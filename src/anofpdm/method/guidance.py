"""The two noise predictions that each level needs, and the guided estimate that follows from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL
from anofpdm.network.schedule import NoiseSchedule

PredictNoise = Callable[[Tensor, int, Tensor], Tensor]  # x [N, C, H, W], t, labels [N] -> noise [N, C, H, W]
LABELS = (HEALTHY, NULL)  # of the two predictions


def noise_pair(predict_noise: PredictNoise, x: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """e_h (label HEALTHY) and e_0 (label NULL) in one call: the only two evaluations that a level needs."""
    labels = torch.tensor(LABELS).repeat_interleave(len(x)).to(x.device, non_blocking=True)
    healthy, unguided = predict_noise(torch.cat([x, x]), t, labels).to(x.dtype).contiguous().chunk(2)
    return healthy, unguided


def guided_estimate(
    x: Tensor, healthy: Tensor, unguided: Tensor, t: int, strengths: Tensor, schedule: NoiseSchedule
) -> Tensor:
    """g_t, the clean slice guided towards healthy: x [N, C, H, W], strengths [W] -> [N, W, C, H, W].

    g_t = (x_t - sqrt(1 - a_t) ((1 + w) e_h - w e_0)) / sqrt(a_t), computed as u_t - (1 + w) (e_h - e_0) sqrt(1 - a_t) /
    sqrt(a_t): the difference of the predictions is small against either, so it is taken first and shared by all w.
    """
    alpha, sigma = schedule.signal_and_noise(t, x)
    step = (healthy - unguided) * (sigma / alpha)
    weight = (1 + strengths.to(x)).view(-1, 1, 1, 1)
    return schedule.clean(x, unguided, t)[:, None] - weight * step[:, None]
