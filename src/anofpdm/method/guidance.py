"""The two noise predictions that each level needs, and the guided estimate that follows from them."""

from collections.abc import Callable

import torch
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL
from anofpdm.network.schedule import NoiseSchedule

# x [N, C, H, W], t, labels [k * N] -> noise [k * N, C, H, W]: all slices with their first labels, then the next ones.
PredictNoise = Callable[[Tensor, int, Tensor], Tensor]
NoisePair = Callable[[Tensor, int], tuple[Tensor, Tensor]]  # x, t -> e_h (label HEALTHY), e_0 (label NULL)


def noise_pair(predict_noise: PredictNoise) -> NoisePair:
    """Both predictions in one call: the only two evaluations that a level needs."""

    def predict_both(x: Tensor, t: int) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([HEALTHY, NULL]).repeat_interleave(len(x)).to(x.device, non_blocking=True)
        healthy, unguided = predict_noise(x, t, labels).to(x.dtype).contiguous().chunk(2)
        return healthy, unguided

    return predict_both


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
