"""Evidence: what one pass through the noise levels tells of each slice, for any number of guidance strengths.

Neither the pass nor the network's predictions depend on the strength, and the end step is a running maximum. So one
pass serves all strengths, and nothing is kept per level but three numbers a slice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anofpdm.errors import MethodError
from anofpdm.method.forward_process import Level, forward_process, slice_noise
from anofpdm.method.guidance import PredictNoise, guided_estimate, noise_pair
from anofpdm.method.signals import LevelTerms, combine, components, counted_levels, level_map
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.options import Encoding, Signal, parse

AUTHORS_TOP = 600  # the authors' code uses levels 0 .. 599
CURVES = ("divergence", "mse_guided", "mse_unguided", "end_step")  # tensors of evidence, besides the maps


@dataclass(frozen=True)
class EvidenceSettings:
    """How evidence is gathered. A calibration holds for one set of these."""

    levels: tuple[int, ...]
    channels: tuple[int, ...]  # the scored ones
    encoding: Encoding = Encoding.DDIM
    signal: Signal = Signal.ERROR
    clamp: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", parse(Encoding, self.encoding))
        object.__setattr__(self, "signal", parse(Signal, self.signal))
        if self.signal == Signal.AUTO:
            raise MethodError("evidence needs a signal; 'auto' is for calibration")
        if not all(type(number) is int for number in (*self.levels, *self.channels)) or type(self.clamp) is not bool:
            raise MethodError("noise levels and channels must be integers, clamp true or false")
        if not self.levels or any(a >= b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise MethodError(f"noise levels must increase, at least one of them; got {list(self.levels)}")
        if not self.channels or len(set(self.channels)) < len(self.channels) or min(self.channels) < 0:
            raise MethodError(f"scored channels must be distinct, at least one of them; got {list(self.channels)}")
        if self.levels[0] < 0:
            raise MethodError(f"noise levels must not be negative; got {list(self.levels)}")


def spread_levels(count: int, top: int = AUTHORS_TOP) -> tuple[int, ...]:
    """`count` levels of 0 .. top - 1, equally spaced from 0: 60 of 600 are every tenth."""
    if not 1 <= count <= top:
        raise MethodError(f"{count} levels do not fit into {top}")
    return tuple(number * top // count for number in range(count))


class SignalMaps(NamedTuple):
    """Of one signal, each [N, W, H, W]."""

    mean: Tensor  # over all levels up to the end step
    last: Tensor  # at the end step alone


@dataclass(frozen=True)
class Evidence:
    """Of N slices, W strengths, K levels."""

    settings: EvidenceSettings  # `settings.signal` is the signal of `maps` and `last_maps`
    strengths: tuple[float, ...]
    divergence: Tensor  # [N, W, K], M_t: how far guidance moves the estimate
    mse_guided: Tensor  # [N, W, K]
    mse_unguided: Tensor  # [N, K]
    end_step: Tensor  # [N, W], t_e: the level of the largest divergence
    maps_by_signal: Mapping[Signal, SignalMaps]

    def __len__(self) -> int:
        return len(self.end_step)

    @property
    def maps(self) -> Tensor:
        """[N, W, H, W], the aggregated maps H."""
        return self.maps_by_signal[self.settings.signal].mean

    @property
    def last_maps(self) -> Tensor:
        """[N, W, H, W], the signal at the end step."""
        return self.maps_by_signal[self.settings.signal].last

    @property
    def end_divergence(self) -> Tensor:
        """[N, W], M at the end step."""
        return self.divergence.amax(dim=2)

    @property
    def similarity(self) -> Tensor:
        """[N, W], cosine of the guided and the unguided error curve, in float64: it is close to 1."""
        guided, unguided = (curve.cpu().double() for curve in (self.mse_guided, self.mse_unguided[:, None]))
        return torch.cosine_similarity(guided, unguided, dim=2).clamp(-1, 1)

    def at(self, strength: float) -> "Evidence":
        """The evidence at one strength."""
        if strength not in self.strengths:
            raise MethodError(f"no evidence at strength {strength:g}, only at {list(self.strengths)}")
        one = [self.strengths.index(strength)]
        selected = self.map(lambda tensor: tensor if tensor is self.mse_unguided else tensor[:, one])  # has no W axis
        return replace(selected, strengths=(strength,))

    def with_signal(self, signal: Signal) -> "Evidence":
        """The same evidence, with the maps of another signal that was gathered in the same pass."""
        return replace(self, settings=replace(self.settings, signal=signal))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Evidence":
        """The same change applied to every tensor: moved to another device, or some of the slices taken."""
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in CURVES}
        maps = {signal: SignalMaps(*map(change, both)) for signal, both in self.maps_by_signal.items()}
        return replace(self, **tensors, maps_by_signal=maps)


def concatenate(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several batches as one."""
    tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in CURVES}
    maps = {
        signal: SignalMaps(*map(torch.cat, zip(*(part.maps_by_signal[signal] for part in parts), strict=True)))
        for signal in parts[0].maps_by_signal
    }
    return replace(parts[0], **tensors, maps_by_signal=maps)


SignalMap = Callable[[], Tensor]  # computes the first signal's map [N, W, H, W] at the current level
OnLevel = Callable[[Level, SignalMap], None]


@torch.no_grad()
def forward_evidence(
    predict_noise: PredictNoise,
    x0: Tensor,  # [N, C, H, W] in [-1, 1]
    *,
    levels: Sequence[int],
    strengths: Sequence[float],
    schedule: NoiseSchedule,
    seeds: Sequence[int],  # one a slice
    channels: Sequence[int] | None = None,  # the scored ones; default: all
    encoding: Encoding | str = Encoding.DDIM,
    signal: Signal | str | Sequence[Signal] = Signal.ERROR,  # of several, `maps` are those of the first
    clamp: bool = True,
    on_level: OnLevel | None = None,
) -> Evidence:
    """Run the forward process on a batch of slices and gather its evidence."""
    scored = tuple(range(x0.shape[1])) if channels is None else tuple(channels)
    signals = (parse(Signal, signal),) if isinstance(signal, str) else tuple(signal)
    settings = EvidenceSettings(tuple(levels), scored, parse(Encoding, encoding), signals[0], clamp)
    _check(x0, settings, strengths, schedule, seeds)
    running = _RunningEvidence(x0, signals, settings, tuple(float(w) for w in strengths), schedule)
    for level in forward_process(
        noise_pair(predict_noise),
        x0,
        settings.levels,
        draw=slice_noise(x0, seeds),
        schedule=schedule,
        encoding=settings.encoding,
        clamp=clamp,
    ):
        running.add(level)
        if on_level is not None:
            on_level(level, running.current_map)
    evidence = running.evidence()
    if not evidence.divergence.isfinite().all():
        raise MethodError("the network predicts non-finite values; try --precision fp32, or train it again")
    return evidence


class _RunningEvidence:
    """The largest divergence so far, which sets each slice's end step, and the sums up to it."""

    def __init__(
        self,
        x0: Tensor,
        signals: Sequence[Signal],
        settings: EvidenceSettings,
        strengths: tuple[float, ...],
        schedule: NoiseSchedule,
    ):
        self.signals, self.settings, self.strengths, self.schedule = signals, settings, strengths, schedule
        self.channels = torch.tensor(settings.channels).to(x0.device)
        self.x0 = self._scored(x0)[:, None]  # [N, 1, C, H, W]
        self.weights = torch.tensor(strengths, dtype=x0.dtype).to(x0.device)  # [W]
        n, _, height, width = x0.shape
        shape = (n, len(strengths), height, width)
        self.sums = {part: _RunningSum(x0, shape) for signal in signals for part in components(signal)}
        self.largest = x0.new_full(shape[:2], -torch.inf)
        self.end = torch.zeros(shape[:2], dtype=torch.long, device=x0.device)  # number of the level
        self.curves: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, level: Level) -> None:
        x, healthy, unguided = (self._scored(part) for part in (level.x, level.healthy, level.unguided))
        clean = self._scored(level.clean)[:, None]  # u_t
        estimate = guided_estimate(x, healthy, unguided, level.t, strengths=self.weights, schedule=self.schedule)
        if self.settings.clamp:
            estimate = estimate.clamp(-1, 1)  # g_t [N, W, C, H, W]
        divergence = pixel_mean((estimate - clean).square())  # M_t
        error = (estimate - self.x0).square()  # S_t
        self.curves.append((divergence, pixel_mean(error), pixel_mean((clean - self.x0).square())[:, 0]))
        is_maximum = divergence > self.largest
        self.largest = torch.where(is_maximum, divergence, self.largest)
        self.end.masked_fill_(is_maximum, level.number)
        terms = LevelTerms(level.t, level.number == 0, error, healthy, unguided, self.weights)
        for component, running in self.sums.items():
            running.add(level_map(component, terms, self.schedule), is_maximum)

    def current_map(self) -> Tensor:
        """The first signal at the last level that was added."""
        maps = {component: running.current for component, running in self.sums.items()}
        return combine(self.signals[0], maps, torch.full_like(self.end, len(self.curves) == 1, dtype=torch.bool))

    def evidence(self) -> Evidence:
        divergence, mse_guided, mse_unguided = (torch.stack(curve, -1) for curve in zip(*self.curves, strict=True))
        means = {
            component: running.at_end / counted_levels(component, self.end)[..., None, None]
            for component, running in self.sums.items()
        }
        lasts = {component: running.last for component, running in self.sums.items()}
        at_lowest = self.end == 0
        return Evidence(
            self.settings,
            self.strengths,
            divergence,
            mse_guided,
            mse_unguided,
            end_step=torch.tensor(self.settings.levels).to(self.end.device)[self.end],
            maps_by_signal={
                signal: SignalMaps(combine(signal, means, at_lowest), combine(signal, lasts, at_lowest))
                for signal in self.signals
            },
        )

    def _scored(self, x: Tensor) -> Tensor:
        return x if len(self.channels) == x.shape[1] else x.index_select(1, self.channels)


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


def _check(
    x0: Tensor, settings: EvidenceSettings, strengths: Sequence[float], schedule: NoiseSchedule, seeds: Sequence[int]
) -> None:
    if x0.ndim != 4 or not len(x0):
        raise MethodError(f"slices must be [N, C, H, W], at least one; got {tuple(x0.shape)}")
    if settings.levels[-1] >= len(schedule):
        raise MethodError(f"noise levels must lie in 0..{len(schedule) - 1}; got {list(settings.levels)}")
    if max(settings.channels) >= x0.shape[1]:
        raise MethodError(f"scored channel {max(settings.channels)} does not exist: slices have {x0.shape[1]} channels")
    if not len(strengths) or len(set(strengths)) < len(strengths):
        raise MethodError(f"guidance strengths must be distinct, at least one of them; got {list(strengths)}")
    if not all(torch.isfinite(torch.tensor(float(w))) for w in strengths):
        raise MethodError(f"guidance strengths must be finite; got {list(strengths)}")
    if len(seeds) != len(x0):
        raise MethodError(f"{len(seeds)} seeds for {len(x0)} slices; give one for each slice")
