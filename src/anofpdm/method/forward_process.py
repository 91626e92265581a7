"""The forward process: a slice carried up through the noise levels, the network asked at each of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anofpdm.method.guidance import NoisePair
from anofpdm.network.schedule import NoiseSchedule

ENCODINGS = ("ddim", "ddpm")
Draw = Callable[[], Tensor]  # the next noise, [N, C, H, W]


@dataclass(frozen=True)
class Level:
    """Everything the network knows at one noise level; all tensors [N, C, H, W]."""

    number: int  # of K, counted from 0
    t: int
    x: Tensor  # the noisy slice
    healthy: Tensor  # the noise in it, asked for a healthy slice
    unguided: Tensor  # the noise in it, asked for any slice
    clean: Tensor  # the slice behind it by the unguided answer


def forward_process(
    ask: NoisePair,
    x0: Tensor,
    levels: Sequence[int],
    *,
    draw: Draw,
    schedule: NoiseSchedule,
    encoding: str = "ddim",
    clamp: bool = True,
) -> Iterator[Level]:
    """Climb the noise levels. `ddim` keeps the noise that the network sees in x; `ddpm` draws anew at every level."""
    x = schedule.add_noise(x0, levels[0], draw())
    for number, t in enumerate(levels):
        healthy, unguided = ask(x, t)
        clean = schedule.clean(x, unguided, t)
        if clamp:
            clean = clean.clamp(-1, 1)
        yield Level(number, t, x, healthy, unguided, clean)
        if number + 1 == len(levels):
            return
        above = levels[number + 1]
        x = schedule.ddim_step(x, clean, t, above) if encoding == "ddim" else schedule.add_noise(x0, above, draw())


def slice_noise(x0: Tensor, seeds: Sequence[int]) -> Draw:
    """Noise of each slice's own, float32, whatever batch the slice is in: one CPU generator a slice."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw() -> Tensor:
        noise = torch.stack([torch.randn(x0.shape[1:], generator=generator) for generator in generators])
        if x0.is_cuda:
            noise = noise.pin_memory()
        return noise.to(x0.device, x0.dtype, non_blocking=True)

    return draw
