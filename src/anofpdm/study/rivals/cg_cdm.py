"""CG-CDM: the change of a slice when its label moves slightly towards healthy, as a finite difference.

The same noised slice is decoded twice: with the label unhealthy, and with a label that is slightly healthy, guided
further by a classifier. The difference of the results shows what depends on the label.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.guidance import PredictNoise
from anofpdm.study.rivals.ddim import SCHEDULE, HealthyGradient, decode, guide, with_label

HEALTHY_SHARE = 0.05


def paths(
    predict_noise: PredictNoise,
    healthy_gradient: HealthyGradient,
    x0: Tensor,
    *,
    levels: Sequence[int],  # ascending, up to the highest used
    scale: float,
    noise: Tensor,
    clamp: bool = True,
) -> tuple[Tensor, Tensor]:
    """The slice decoded as unhealthy, and as slightly healthy."""

    def slightly_healthy(x: Tensor, t: int) -> Tensor:
        shares = torch.zeros(len(x), NULL + 1, device=x.device)
        shares[:, UNHEALTHY], shares[:, HEALTHY] = 1 - HEALTHY_SHARE, HEALTHY_SHARE
        return predict_noise(x, t, shares)

    x = SCHEDULE.add_noise(x0, levels[-1], noise)
    return (
        decode(with_label(predict_noise, UNHEALTHY), x, levels, clamp=clamp),
        decode(guide(slightly_healthy, healthy_gradient, scale), x, levels, clamp=clamp),
    )
