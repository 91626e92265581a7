"""Evidence while it is gathered.

Neither the forward process nor the network's predictions depend on the strength, and the end step is a running maximum.
So one pass serves all strengths, and nothing is kept per level but three numbers a slice.
"""

import torch
from torch import Tensor

from anofpdm.choices import Signal
from anofpdm.method.evidence import Evidence, EvidenceRequest, SignalMaps, combine
from anofpdm.method.forward_process import Level
from anofpdm.method.guidance import guided_estimate

LOW_WEIGHT = 1e-12  # of low levels in `gradient-above`; not 0, so that a slice that ends at one still has a map


class RunningEvidence:
    """The largest divergence so far, which sets each slice's end step, and the sums up to it."""

    def __init__(self, x0: Tensor, request: EvidenceRequest):  # slices [N, C, H, W]
        self.request, self.settings, self.components = request, request.settings, request.components
        self.channels = torch.tensor(self.settings.channels, device=x0.device)
        self.strengths = torch.tensor(request.strengths, dtype=x0.dtype, device=x0.device)
        self.x0 = x0[:, None, self.channels]
        shape = (len(x0), len(request.strengths))
        self.largest = x0.new_full(shape, -torch.inf)
        self.end = torch.zeros(shape, dtype=torch.long, device=x0.device)  # number of the level
        self.curves: list[tuple[Tensor, Tensor, Tensor]] = []
        self.sums = x0.new_zeros((len(self.components), *shape, *x0.shape[2:]))
        self.at_end = self.last = self.sums  # sums, and signals, at the largest divergence

    def add(self, level: Level) -> None:
        """The next level."""
        tensors = (level.x, level.healthy, level.unguided, level.clean)
        x, e_h, e_0, clean = (tensor.index_select(1, self.channels) for tensor in tensors)
        guided = guided_estimate(x, e_h, e_0, level.t, self.strengths, self.request.schedule)
        guided = guided.clamp(-1, 1) if self.settings.clamp else guided  # g_t, [N, W, C, H, W]
        unguided = clean[:, None]  # u_t
        divergence = pixel_mean((guided - unguided).square())  # M_t
        error = (guided - self.x0).square()  # S_t
        self.curves.append((divergence, pixel_mean(error), pixel_mean((unguided - self.x0).square())[:, 0]))
        is_maximum = divergence > self.largest
        self.largest = torch.where(is_maximum, divergence, self.largest)
        self.end.masked_fill_(is_maximum, level.number)
        self.is_low = level.t <= self.settings.highest_low
        maps = [self._level_map(component, level.t, error, (e_h - e_0).square()) for component in self.components]
        self.current = torch.stack([signal.expand_as(self.sums[0]) for signal in maps])
        self.sums = self.sums + self.current
        self.at_end = torch.where(is_maximum[..., None, None], self.sums, self.at_end)
        self.last = torch.where(is_maximum[..., None, None], self.current, self.last)

    def _level_map(self, signal: Signal, t: int, error: Tensor, squared: Tensor) -> Tensor:
        """A component at one level, averaged over channels: [N, W, H, W], or [N, 1, H, W] where it is independent of W.

        `error` is S_t [N, W, C, H, W], `squared` (e_h - e_0)^2 [N, C, H, W]. The gradient is the squared gradient of
        log p(healthy | x_t). It is divided by 1 - alpha_bar, which is 1e-4 at level 0 and small at the next: low levels
        would dominate the mean, and they hold the least information.
        """
        if signal == Signal.ERROR:
            return error.mean(2)
        alpha, sigma = self.request.schedule.signal_and_noise(t, squared)
        squared = squared[:, None]
        if signal == Signal.GRADIENT_WEIGHTED:  # (g_t - u_t)^2 without the clamp
            return (squared * (sigma / alpha) ** 2 * (1 + self.strengths).square().view(-1, 1, 1, 1)).mean(2)
        gradient = squared / sigma**2
        return (gradient * LOW_WEIGHT if signal == Signal.GRADIENT_ABOVE and self.is_low else gradient).mean(2)

    def current_map(self) -> Tensor:
        """[N, W, H, W]: the signal of the settings at the last level that was added."""
        maps = dict(zip(self.components, self.current, strict=True))
        return combine(self.settings, maps, torch.full_like(self.end, self.is_low, dtype=torch.bool))

    def evidence(self) -> Evidence:
        divergence, mse_guided, mse_unguided = (torch.stack(curve, -1) for curve in zip(*self.curves, strict=True))
        levels = torch.tensor(self.settings.levels).to(self.end.device, non_blocking=True)
        n_low = sum(t <= self.settings.highest_low for t in self.settings.levels)
        counted = {Signal.GRADIENT_ABOVE: (self.end + 1 - n_low).clamp(min=1)}  # others count every level
        maps = {
            component: SignalMaps(at_end / counted.get(component, self.end + 1)[..., None, None], last)
            for component, at_end, last in zip(self.components, self.at_end, self.last, strict=True)
        }
        strengths = tuple(map(float, self.request.strengths))
        return Evidence(self.settings, strengths, divergence, mse_guided, mse_unguided, levels[self.end], maps)


def pixel_mean(x: Tensor) -> Tensor:
    """[N, W, C, H, W] -> [N, W]. Rows first: the order of the sum does not depend on the batch."""
    return x.sum(-1).sum((-2, -1)) / (x.shape[-3] * x.shape[-2] * x.shape[-1])
