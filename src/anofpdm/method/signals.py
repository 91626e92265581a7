"""What is averaged over noise levels into an anomaly map, by name.

`error` is the paper's S_t. `gradient` and `gradient-weighted` are those of its Appendix D. `gradient-above` and
`agreement` are ours (docs/method.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Signal

COMPONENTS = {Signal.AGREEMENT: (Signal.ERROR, Signal.GRADIENT_ABOVE)}  # signals that combine the maps of others
GRADIENT_SHARE = 1 / 3  # default exponent of the gradient in `agreement`; the error has the rest
LOW_SHARE = 0.1  # levels up to this share of the highest one are low: `gradient-above` leaves them out
LOW_WEIGHT = 1e-12  # of low levels in `gradient-above`; not 0, so that a slice that ends at one still has a map


@dataclass(frozen=True)
class LevelTerms:
    """What signals are computed from, at one noise level, in the scored channels."""

    t: int
    is_low: bool
    error: Tensor  # S_t [N, W, C, H, W]
    healthy: Tensor  # e_h [N, C, H, W]
    unguided: Tensor  # e_0 [N, C, H, W]
    strengths: Tensor  # [W]


def components(signal: Signal) -> tuple[Signal, ...]:
    return COMPONENTS.get(signal, (signal,))


def level_map(signal: Signal, terms: LevelTerms, schedule: NoiseSchedule) -> Tensor:
    """A component at one level, averaged over channels: [N, W, H, W], or [N, 1, H, W] where it is independent of W.

    The gradient is the squared gradient of log p(healthy | x_t). It is divided by 1 - alpha_bar, which is 1e-4 at level
    0 and small at the next: low levels would dominate the mean, and they hold the least information.
    """
    if signal == Signal.ERROR:
        return terms.error.mean(2)
    alpha, sigma = schedule.signal_and_noise(terms.t, terms.healthy)
    squared = (terms.healthy - terms.unguided).square()[:, None]
    if signal == Signal.GRADIENT_WEIGHTED:  # (g_t - u_t)^2 without the clamp
        return (squared * (sigma / alpha) ** 2 * (1 + terms.strengths).square().view(-1, 1, 1, 1)).mean(2)
    gradient = squared / sigma**2
    if signal == Signal.GRADIENT_ABOVE and terms.is_low:
        gradient = gradient * LOW_WEIGHT
    return gradient.mean(2)


def low_levels(levels: Sequence[int]) -> int:
    """How many of them are low. With up to ten levels spread from 0, that is level 0 alone."""
    return sum(level <= LOW_SHARE * levels[-1] for level in levels)


def counted_levels(signal: Signal, end: Tensor, low: int) -> Tensor:
    """[N, W]: how many levels the mean up to the level number `end` is over; the first `low` are low."""
    return (end + 1 - low).clamp(min=1) if signal == Signal.GRADIENT_ABOVE else end + 1


def combine(signal: Signal, maps: Mapping[Signal, Tensor], ends_low: Tensor, gradient_share: float) -> Tensor:
    """A signal's maps [N, W, H, W] from those of its components.

    `agreement` is a weighted geometric mean: high where both the error and the gradient are. Where only low levels were
    averaged (`ends_low` [N, W]) there is no gradient, and it equals the error.
    """
    if signal != Signal.AGREEMENT:
        return maps[signal]
    error, gradient = (maps[component] for component in components(signal))
    mean = error ** (1 - gradient_share) * gradient**gradient_share
    return torch.where(ends_low[..., None, None], error, mean)
