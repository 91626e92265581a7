"""What is averaged over noise levels into an anomaly map, by name.

`error` is the paper's S_t. `gradient` and `gradient-weighted` are those of its Appendix D. `gradient-above` and
`agreement` are ours (docs/method.md).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from anofpdm.method.forward_process import Level
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Signal

GRADIENT_SHARE = 1 / 3  # default exponent of the gradient in `agreement`; the error has the rest
LOW_SHARE = 0.1  # levels up to this share of the highest one are low: `gradient-above` leaves them out
LOW_WEIGHT = 1e-12  # of low levels in `gradient-above`; not 0, so that a slice that ends at one still has a map


def components(signal: Signal) -> tuple[Signal, ...]:
    """The signals whose maps it combines, or itself: what is summed over levels."""
    return (Signal.ERROR, Signal.GRADIENT_ABOVE) if signal == Signal.AGREEMENT else (signal,)


def level_map(
    signal: Signal, level: Level, error: Tensor, strengths: Tensor, *, is_low: bool, schedule: NoiseSchedule
) -> Tensor:
    """A component at one level, averaged over channels: [N, W, H, W], or [N, 1, H, W] where it is independent of W.

    `error` is S_t [N, W, C, H, W]. The gradient is the squared gradient of log p(healthy | x_t). It is divided by
    1 - alpha_bar, which is 1e-4 at level 0 and small at the next: low levels would dominate the mean, and they hold the
    least information.
    """
    if signal == Signal.ERROR:
        return error.mean(2)
    alpha, sigma = schedule.signal_and_noise(level.t, level.healthy)
    squared = (level.healthy - level.unguided).square()[:, None]
    if signal == Signal.GRADIENT_WEIGHTED:  # (g_t - u_t)^2 without the clamp
        return (squared * (sigma / alpha) ** 2 * (1 + strengths).square().view(-1, 1, 1, 1)).mean(2)
    gradient = squared / sigma**2
    return (gradient * LOW_WEIGHT if signal == Signal.GRADIENT_ABOVE and is_low else gradient).mean(2)


def combine(signal: Signal, maps: Mapping[Signal, Tensor], is_low: Tensor, gradient_share: float) -> Tensor:
    """A signal's maps [N, W, H, W] from those of its components.

    `agreement` is a weighted geometric mean: high where both the error and the gradient are. Where only low levels were
    averaged (`is_low` [N, W]) there is no gradient, and it equals the error.
    """
    if signal != Signal.AGREEMENT:
        return maps[signal]
    parts = [maps[part] for part in components(signal)]
    error, gradient = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts)
    mean = error ** (1 - gradient_share) * gradient**gradient_share
    return torch.where(is_low[..., None, None], error, mean)
