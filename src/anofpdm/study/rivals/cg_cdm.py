"""CG-CDM: the change of a slice when its label moves slightly towards healthy, as a finite difference.

The same noised slice is decoded twice: with the label unhealthy, and with a label that is slightly healthy, guided
further by a classifier. The difference of the results shows what depends on the label.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.guidance import PredictNoise
from anofpdm.network.predictor import HealthyGradient
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.rivals.ddim import decode

HEALTHY_SHARE = 0.05


def paths(
    predict_noise: PredictNoise,
    healthy_gradient: HealthyGradient,
    x0: Tensor,
    *,
    levels: Sequence[int],  # ascending, up to the highest used
    scale: float,
    noise: Tensor,
    schedule: NoiseSchedule,
    clamp: bool = True,
) -> tuple[Tensor, Tensor]:
    """The slice decoded as unhealthy, and as slightly healthy."""

    def unhealthy(x: Tensor, t: int) -> Tensor:
        return predict_noise(x, t, torch.full((len(x),), UNHEALTHY, device=x.device))

    def slightly_healthy(x: Tensor, t: int) -> Tensor:
        shares = torch.zeros(len(x), NULL + 1, device=x.device)
        shares[:, UNHEALTHY], shares[:, HEALTHY] = 1 - HEALTHY_SHARE, HEALTHY_SHARE
        _, spread = schedule.signal_and_noise(t, x)
        return predict_noise(x, t, shares) - spread * scale * healthy_gradient(x, t)

    x = schedule.add_noise(x0, levels[-1], noise)
    return (
        decode(unhealthy, x, levels, schedule=schedule, clamp=clamp),
        decode(slightly_healthy, x, levels, schedule=schedule, clamp=clamp),
    )
