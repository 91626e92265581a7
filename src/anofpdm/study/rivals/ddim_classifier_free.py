"""What is healthy? (Sanchez et al. 2022): encoding without a label, decoding guided to healthy, by one network."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anofpdm.labels import NULL
from anofpdm.method.guidance import PredictNoise, noise_pair
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.rivals.ddim import decode, encode


def reconstruct(
    predict_noise: PredictNoise,
    x0: Tensor,
    *,
    levels: Sequence[int],  # ascending, up to the highest used
    strength: float,  # w: the healthy prediction has weight 1 + w
    noise: Tensor,
    schedule: NoiseSchedule,
    clamp: bool = True,
) -> Tensor:
    predict_pair = noise_pair(predict_noise)

    def without_label(x: Tensor, t: int) -> Tensor:
        return predict_noise(x, t, torch.full((len(x),), NULL, device=x.device))

    def towards_healthy(x: Tensor, t: int) -> Tensor:
        healthy, unguided = predict_pair(x, t)
        return (1 + strength) * healthy - strength * unguided

    x = encode(without_label, x0, levels, noise=noise, schedule=schedule, clamp=clamp)
    return decode(towards_healthy, x, levels, schedule=schedule, clamp=clamp)
