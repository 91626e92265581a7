"""How much noise there is at each level, and the steps between levels. Levels are counted from 0 (least noise)."""

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
                f"a noise schedule needs steps and rising betas inside (0, 1), got {steps}, {first}, {last}"
            )
        return cls(torch.linspace(first, last, steps, dtype=torch.float64))

    @functools.cached_property
    def alpha_bar(self) -> Tensor:
        """[T] float64, the share of a slice's variance that is left at each level."""
        return (1 - self.betas).cumprod(0)

    def __len__(self) -> int:
        return len(self.betas)

    def signal_and_noise(self, t: Level, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """sqrt(alpha_bar) and sqrt(1 - alpha_bar) at level t, ready to be multiplied with x [N, C, H, W]."""
        if isinstance(t, int):  # plain numbers, so that a GPU is sent nothing
            share = float(self.alpha_bar[t])
            return math.sqrt(share), math.sqrt(1 - share)
        shares = self.alpha_bar.to(t.device)[t].view(-1, *[1] * (x.ndim - 1))
        return shares.sqrt().to(x), (1 - shares).sqrt().to(x)

    def add_noise(self, x0: Tensor, t: Level, noise: Tensor) -> Tensor:
        signal, spread = self.signal_and_noise(t, x0)
        return signal * x0 + spread * noise

    def clean(self, x: Tensor, noise: Tensor, t: Level) -> Tensor:
        """The slice that x would be if `noise` were the noise in it."""
        signal, spread = self.signal_and_noise(t, x)
        return (x - spread * noise) / signal

    def noise_in(self, x: Tensor, clean: Tensor, t: Level) -> Tensor:
        """The noise in x if `clean` were the slice behind it: `clean` turned round."""
        signal, spread = self.signal_and_noise(t, x)
        return (x - signal * clean) / spread

    def ddim_step(self, x: Tensor, clean: Tensor, t: int, t_next: int) -> Tensor:
        """From level t to level t_next, up or down, keeping the noise that is in x."""
        return self.add_noise(clean, t_next, self.noise_in(x, clean, t))

    def posterior(self, x: Tensor, clean: Tensor, t: int) -> tuple[Tensor, float]:
        """Mean and deviation of level t - 1 given level t and the slice behind it: one step of DDPM sampling."""
        beta, bar = float(self.betas[t]), float(self.alpha_bar[t])
        below = float(self.alpha_bar[t - 1]) if t else 1.0
        mean = (math.sqrt(below) * beta * clean + math.sqrt(1 - beta) * (1 - below) * x) / (1 - bar)
        return mean, math.sqrt(beta * (1 - below) / (1 - bar))
