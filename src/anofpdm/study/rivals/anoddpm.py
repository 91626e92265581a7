"""AnoDDPM (Wyatt et al. 2022): a model trained on healthy slices denoises a partly noised slice.

Lesions, which the model has not been trained on, are not reconstructed. Simplex noise has the scale of lesions.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anofpdm.study.rivals.ddim import SCHEDULE, Predict, estimate_clean
from anofpdm.study.rivals.simplex import random_permutations, simplex_noise

SampleNoise = Callable[[int], Tensor]  # level t -> noise [N, C, H, W]


@torch.no_grad()
def reconstruct(predict: Predict, x0: Tensor, level: int, draw: SampleNoise, *, clamp: bool = True) -> Tensor:
    """Noise to `level`, then DDPM sampling down to 0, one level at a time."""
    x = SCHEDULE.add_noise(x0, level, draw(level))
    for t in range(level, -1, -1):
        mean, deviation = posterior(x, estimate_clean(predict, x, t, clamp), t)
        x = mean + deviation * draw(t) if t else mean
    return x


def posterior(x: Tensor, clean: Tensor, t: int) -> tuple[Tensor, float]:
    """Mean and standard deviation at level t - 1, given x at level t and the clean slice: a DDPM step."""
    beta, bar = float(SCHEDULE.betas[t]), float(SCHEDULE.alpha_bar[t])
    below = float(SCHEDULE.alpha_bar[t - 1]) if t else 1.0
    mean = (math.sqrt(below) * beta * clean + math.sqrt(1 - beta) * (1 - below) * x) / (1 - bar)
    return mean, math.sqrt(beta * (1 - below) / (1 - bar))


def gaussian_draws(x0: Tensor, seeds: Sequence[int]) -> SampleNoise:
    """Each slice has its own generator, on the slice's device, because hundreds of samples are needed."""
    generators = [torch.Generator(x0.device).manual_seed(seed) for seed in seeds]

    def draw(_t: int) -> Tensor:
        noise = [torch.randn(x0.shape[1:], generator=generator, device=x0.device) for generator in generators]
        return torch.stack(noise).to(x0.dtype)

    return draw


def simplex_draws(x0: Tensor, seeds: Sequence[int]) -> SampleNoise:
    """A new noise field for every slice, channel and sample; its plane at z = t."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    _, channels, height, width = x0.shape

    def draw(t: int) -> Tensor:
        fields = torch.cat([random_permutations(channels, generator) for generator in generators]).to(x0.device)
        return simplex_noise(fields, t, height, width).view_as(x0).to(x0.dtype)

    return draw
