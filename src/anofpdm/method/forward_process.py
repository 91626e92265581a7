"""The forward process: a slice carried through rising noise levels, with two noise predictions at each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from anofpdm.choices import Encoding
from anofpdm.method.evidence import EvidenceSettings
from anofpdm.method.guidance import PredictNoise, noise_pair
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.util.workers import THREADS, map_in_threads

Draw = Callable[[], Tensor]  # the next noise, [N, C, H, W]


@dataclass(frozen=True)
class Level:
    """One noise level; all tensors [N, C, H, W]."""

    number: int  # of K, counted from 0
    t: int
    x: Tensor  # x_t, the noisy slice
    healthy: Tensor  # e_h, the noise predicted with the label HEALTHY
    unguided: Tensor  # e_0, the noise predicted without a label
    clean: Tensor  # u_t, the clean slice that follows from e_0


def forward_process(
    predict_noise: PredictNoise, x0: Tensor, settings: EvidenceSettings, schedule: NoiseSchedule, draw: Draw
) -> Iterator[Level]:
    """Yield each noise level in turn. `ddim` keeps the predicted noise; `ddpm` draws new noise at every level."""
    x = schedule.add_noise(x0, settings.levels[0], draw())
    for number, (t, t_next) in enumerate(zip_longest(settings.levels, settings.levels[1:])):
        healthy, unguided = noise_pair(predict_noise, x, t)
        clean = schedule.clean(x, unguided, t)
        if settings.clamp:
            clean = clean.clamp(-1, 1)
        yield Level(number, t, x, healthy, unguided, clean)
        if t_next is not None:
            ddim = settings.encoding == Encoding.DDIM
            x = schedule.ddim_step(x, clean, t, t_next) if ddim else schedule.add_noise(x0, t_next, draw())


def slice_noise(x0: Tensor, seeds: Sequence[int]) -> Draw:
    """Standard normal float32 noise from one CPU generator a slice: the same for a slice in any batch."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw() -> Tensor:
        noise = torch.empty(len(generators), *x0.shape[1:], pin_memory=x0.is_cuda)

        def fill(row: int) -> None:
            torch.randn(x0.shape[1:], generator=generators[row], out=noise[row])

        list(map_in_threads(fill, range(len(generators)), THREADS if x0.is_cuda else 1))  # a GPU waits for it
        return noise.to(x0.device, x0.dtype, non_blocking=True)

    return draw
