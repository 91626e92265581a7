"""Evidence while it is gathered.

Neither the forward process nor the network's predictions depend on the strength, and the end step is a running maximum.
So one pass serves all strengths, and nothing is kept per level but three numbers a slice.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from anofpdm.method.evidence import Evidence, EvidenceSettings, SignalMaps
from anofpdm.method.forward_process import Level
from anofpdm.method.signals import LOW_SHARE, combine, level_map
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Signal


class RunningEvidence:
    """The largest divergence so far, which sets each slice's end step, and the sums up to it."""

    def __init__(
        self,
        x0: Tensor,  # [N, C, H, W], scored channels of the slices
        settings: EvidenceSettings,
        components: Sequence[Signal],
        strengths: Tensor,  # [W]
        schedule: NoiseSchedule,
    ):
        self.x0, self.settings, self.strengths, self.schedule = x0[:, None], settings, strengths, schedule
        n, _, height, width = x0.shape
        shape = (n, len(strengths), height, width)
        self.sums = {component: _RunningSum(x0, shape) for component in components}
        self.largest = x0.new_full(shape[:2], -torch.inf)
        self.end = torch.zeros(shape[:2], dtype=torch.long, device=x0.device)  # number of the level
        self.curves: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, level: Level, guided: Tensor) -> None:
        """The next level, in its scored channels, and its guided estimate g_t [N, W, C, H, W]."""
        unguided = level.clean[:, None]  # u_t
        divergence = pixel_mean((guided - unguided).square())  # M_t
        error = (guided - self.x0).square()  # S_t
        self.curves.append((divergence, pixel_mean(error), pixel_mean((unguided - self.x0).square())[:, 0]))
        is_maximum = divergence > self.largest
        self.largest = torch.where(is_maximum, divergence, self.largest)
        self.end.masked_fill_(is_maximum, level.number)
        self.is_low = level.t <= LOW_SHARE * self.settings.levels[-1]
        for component, running in self.sums.items():
            signal = level_map(component, level, error, self.strengths, is_low=self.is_low, schedule=self.schedule)
            running.add(signal, is_maximum)

    def current_map(self) -> Tensor:
        """[N, W, H, W]: the signal of the settings at the last level that was added."""
        maps = {component: running.current for component, running in self.sums.items()}
        is_low = torch.full_like(self.end, self.is_low, dtype=torch.bool)
        return combine(self.settings.signal, maps, is_low, self.settings.gradient_share)

    def evidence(self, strengths: tuple[float, ...]) -> Evidence:
        divergence, mse_guided, mse_unguided = (torch.stack(curve, -1) for curve in zip(*self.curves, strict=True))
        levels = torch.tensor(self.settings.levels).to(self.end.device, non_blocking=True)
        n_low = int(sum(t <= LOW_SHARE * self.settings.levels[-1] for t in self.settings.levels))
        counted = {Signal.GRADIENT_ABOVE: (self.end + 1 - n_low).clamp(min=1)}  # others count every level
        maps = {
            component: SignalMaps(running.at_end / counted.get(component, self.end + 1)[..., None, None], running.last)
            for component, running in self.sums.items()
        }
        return Evidence(self.settings, strengths, divergence, mse_guided, mse_unguided, levels[self.end], maps)


class _RunningSum:
    """A signal [N, W, H, W] summed over levels, copied whenever a slice's divergence sets a new maximum."""

    def __init__(self, x0: Tensor, shape: tuple[int, ...]):
        self.total, self.at_end, self.last = (x0.new_zeros(shape) for _ in range(3))
        self.current = self.last

    def add(self, signal: Tensor, is_maximum: Tensor) -> None:
        self.current = signal.expand_as(self.total)
        self.total = self.total + self.current
        self.at_end = torch.where(is_maximum[..., None, None], self.total, self.at_end)
        self.last = torch.where(is_maximum[..., None, None], self.current, self.last)


def pixel_mean(x: Tensor) -> Tensor:
    """[N, W, C, H, W] -> [N, W]. Rows first: the order of the sum does not depend on the batch."""
    return x.sum(-1).sum((-2, -1)) / (x.shape[-3] * x.shape[-2] * x.shape[-1])
