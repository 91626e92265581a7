"""AnoDDPM (Wyatt et al. 2022): a model of healthy slices; noise a slice partly, let the model clean it.

What the model has never seen does not come back. With simplex noise the disturbance is as coarse as lesions are.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.simplex import random_permutations, simplex_noise

Predict = Callable[[Tensor, int], Tensor]  # x, t -> noise
DrawAt = Callable[[int], Tensor]  # noise for level t, [N, C, H, W]


@torch.no_grad()
def reconstruct(
    predict: Predict, x0: Tensor, *, level: int, draw: DrawAt, schedule: NoiseSchedule, clamp: bool = True
) -> Tensor:
    """Noise to `level`, then DDPM sampling down to 0, one level at a time."""
    x = schedule.add_noise(x0, level, draw(level))
    for t in range(level, -1, -1):
        clean = schedule.clean(x, predict(x, t), t)
        if clamp:
            clean = clean.clamp(-1, 1)
        mean, deviation = schedule.posterior(x, clean, t)
        x = mean + deviation * draw(t) if t else mean
    return x


def gaussian_draws(x0: Tensor, seeds: Sequence[int]) -> DrawAt:
    """Each slice's noise from a generator of its own, where the slice lies: hundreds are drawn of each."""
    generators = [torch.Generator(x0.device).manual_seed(seed) for seed in seeds]

    def draw(_t: int) -> Tensor:
        drawn = [torch.randn(x0.shape[1:], generator=generator, device=x0.device) for generator in generators]
        return torch.stack(drawn).to(x0.dtype)

    return draw


def simplex_draws(x0: Tensor, seeds: Sequence[int]) -> DrawAt:
    """A new field for every slice, channel and draw; its plane at z = t."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    _, channels, height, width = x0.shape

    def draw(t: int) -> Tensor:
        fields = torch.cat([random_permutations(channels, generator) for generator in generators]).to(x0.device)
        return simplex_noise(fields, t, height, width).view_as(x0).to(x0.dtype)

    return draw
