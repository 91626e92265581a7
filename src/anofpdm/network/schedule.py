"""Noise schedule: the amount of noise at each level, and steps between levels. Levels count from 0 (least noise)."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anofpdm.errors import ConfigError

Level = int | Tensor  # one for the whole batch, or [N] of them


@dataclass(frozen=True)
class NoiseSchedule:
    betas: Tensor  # [T] float64

    @classmethod
    def linear(cls, steps: int = 1000, first: float = 1e-4, last: float = 0.02) -> "NoiseSchedule":
        if steps < 1 or not 0 < first <= last < 1:
            raise ConfigError(
                f"a noise schedule needs at least one step and increasing betas in (0, 1), got {steps}, {first}, {last}"
            )
        return cls(torch.linspace(first, last, steps, dtype=torch.float64))

    @functools.cached_property
    def alpha_bar(self) -> Tensor:
        """[T] float64: the fraction of a slice's variance that remains at each level."""
        return (1 - self.betas).cumprod(0)

    def __len__(self) -> int:
        return len(self.betas)

    def signal_and_noise(self, t: Level, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """sqrt(alpha_bar) and sqrt(1 - alpha_bar) at level t, broadcasting with x [N, C, H, W]."""
        if isinstance(t, int):  # plain numbers need no transfer to a GPU
            share = float(self.alpha_bar[t])
            return math.sqrt(share), math.sqrt(1 - share)
        shape = (-1, *[1] * (x.ndim - 1))
        return self.alpha_bar.sqrt().to(x)[t].view(shape), (1 - self.alpha_bar).sqrt().to(x)[t].view(shape)

    def add_noise(self, x0: Tensor, t: Level, noise: Tensor) -> Tensor:
        signal, spread = self.signal_and_noise(t, x0)
        return signal * x0 + spread * noise

    def clean(self, x: Tensor, noise: Tensor, t: Level) -> Tensor:
        """The clean slice, given x and the noise in it."""
        signal, spread = self.signal_and_noise(t, x)
        return (x - spread * noise) / signal

    def noise_in(self, x: Tensor, clean: Tensor, t: Level) -> Tensor:
        """The noise in x, given the clean slice: the inverse of `clean`."""
        signal, spread = self.signal_and_noise(t, x)
        return (x - signal * clean) / spread

    def ddim_step(self, x: Tensor, clean: Tensor, t: int, t_next: int) -> Tensor:
        """From level t to level t_next, up or down, with the same noise."""
        return self.add_noise(clean, t_next, self.noise_in(x, clean, t))
