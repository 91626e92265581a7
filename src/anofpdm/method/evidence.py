"""What one climb through the noise levels tells of each slice, for any number of guidance strengths at once.

Neither the climb nor the network's answers depend on the strength, and the end step is a running maximum, so one pass
serves all strengths and nothing is kept per level but three numbers a slice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anofpdm.errors import MethodError
from anofpdm.method.forward_process import ENCODINGS, Level, forward_process, slice_noise
from anofpdm.method.guidance import PredictNoise, guided, noise_pair
from anofpdm.network.schedule import NoiseSchedule

SIGNALS = ("error", "gradient", "gradient-weighted", "gradient-above", "agreement")
AUTHORS_TOP = 600  # levels 0 .. 599
LEFT_OUT = 1e-12
PARTS = {"agreement": ("error", "gradient-above")}  # of signals that are made of others
GRADIENT_SHARE = 1 / 3  # of the exponents, where maps of errors and of gradients must agree


@dataclass(frozen=True)
class EvidenceSettings:
    """How evidence is gathered. A calibration holds for one set of these."""

    levels: tuple[int, ...]
    channels: tuple[int, ...]  # the scored ones
    encoding: str = "ddim"
    signal: str = "error"
    clamp: bool = True

    def __post_init__(self) -> None:
        if not self.levels or any(a >= b for a, b in zip(self.levels, self.levels[1:], strict=False)):
            raise MethodError(f"noise levels must rise, at least one of them; got {list(self.levels)}")
        if not self.channels or len(set(self.channels)) < len(self.channels) or min(self.channels) < 0:
            raise MethodError(f"scored channels must be named once each, at least one; got {list(self.channels)}")
        for name, value, allowed in (("encoding", self.encoding, ENCODINGS), ("signal", self.signal, SIGNALS)):
            if value not in allowed:
                raise MethodError(f"unknown {name} {value!r}; choose one of {', '.join(allowed)}")


def spread_levels(count: int, top: int = AUTHORS_TOP) -> tuple[int, ...]:
    """`count` levels of 0 .. top - 1 at equal distance, beginning at 0: 60 of 600 are every tenth."""
    if not 1 <= count <= top:
        raise MethodError(f"{count} levels do not fit into {top}")
    return tuple(number * top // count for number in range(count))


@dataclass(frozen=True)
class Evidence:
    """N slices, W strengths, K levels."""

    settings: EvidenceSettings
    strengths: tuple[float, ...]
    divergence: Tensor  # [N, W, K], M_t: how far guidance moves the estimate
    mse_guided: Tensor  # [N, W, K]
    mse_unguided: Tensor  # [N, K]
    end_step: Tensor  # [N, W], t_e: the level of the largest divergence
    maps: Tensor  # [N, W, H, W], H: the signal's mean over all levels up to the end step
    last_maps: Tensor  # [N, W, H, W]: the signal at the end step

    def __len__(self) -> int:
        return len(self.end_step)

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
        """One strength alone."""
        if strength not in self.strengths:
            raise MethodError(f"no evidence at strength {strength:g}; there is at {list(self.strengths)}")
        one = [self.strengths.index(strength)]
        changes: dict[str, Any] = {name: getattr(self, name)[:, one] for name in FIELDS if name != "mse_unguided"}
        return replace(self, strengths=(strength,), **changes)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Evidence":
        """Every tensor changed alike: moved to another device, or some of the slices taken."""
        changes: dict[str, Any] = {name: change(getattr(self, name)) for name in FIELDS}
        return replace(self, **changes)


FIELDS = ("divergence", "mse_guided", "mse_unguided", "end_step", "maps", "last_maps")


def joined(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several batches as one."""
    whole: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in FIELDS}
    return replace(parts[0], **whole)


@dataclass(frozen=True)
class LevelEvidence:
    """What a listener hears at each level."""

    level: Level
    signal: Tensor  # [N, W, H, W], what is aggregated; of several signals the first
    so_far: Callable[[], dict[str, Evidence]]  # by signal, as if this level were the last


def forward_evidence(
    predict_noise: PredictNoise,
    x0: Tensor,  # [N, C, H, W] in [-1, 1]
    *,
    levels: Sequence[int],
    strengths: Sequence[float],
    schedule: NoiseSchedule,
    seeds: Sequence[int],  # one a slice
    channels: Sequence[int] | None = None,  # the scored ones; none given: all
    encoding: str = "ddim",
    signal: str = "error",
    clamp: bool = True,
    on_level: Callable[[LevelEvidence], None] | None = None,
) -> Evidence:
    scored = tuple(range(x0.shape[1])) if channels is None else tuple(channels)
    settings = EvidenceSettings(tuple(levels), scored, encoding, signal, clamp)
    found = forward_signals(
        predict_noise, x0, (signal,), settings=settings, strengths=strengths, schedule=schedule, seeds=seeds,
        on_level=on_level,
    )  # fmt: skip
    return found[signal]


@torch.no_grad()
def forward_signals(
    predict_noise: PredictNoise,
    x0: Tensor,  # [N, C, H, W] in [-1, 1]
    signals: Sequence[str],  # listeners hear the first
    *,
    settings: EvidenceSettings,
    strengths: Sequence[float],
    schedule: NoiseSchedule,
    seeds: Sequence[int],
    on_level: Callable[[LevelEvidence], None] | None = None,
) -> dict[str, Evidence]:
    """Evidence by signal. The climb and the network's answers do not depend on what is aggregated."""
    _check(x0, settings, strengths, schedule, seeds)
    weights = tuple(float(w) for w in strengths)
    run = _Running(x0, signals, settings, weights, schedule)
    climb = forward_process(
        noise_pair(predict_noise),
        x0,
        settings.levels,
        draw=slice_noise(x0, seeds),
        schedule=schedule,
        encoding=settings.encoding,
        clamp=settings.clamp,
    )
    for level in climb:
        heard = run.add(level)
        if on_level is not None:
            on_level(LevelEvidence(level, heard, run.evidence))
    found = run.evidence()
    if not found[signals[0]].divergence.isfinite().all():
        raise MethodError("the network's answers are not numbers; try --precision fp32, or else train it again")
    return found


class _Running:
    """The divergence's maximum so far, which is where each slice ends, and what is summed up to there."""

    def __init__(
        self,
        x0: Tensor,
        signals: Sequence[str],
        settings: EvidenceSettings,
        strengths: tuple[float, ...],
        schedule: NoiseSchedule,
    ):
        self.signals, self.settings, self.strengths, self.schedule = signals, settings, strengths, schedule
        self.channels = torch.tensor(settings.channels).to(x0.device)
        self.x0 = self._scored(x0)[:, None]  # [N, 1, C, H, W]
        self.weights = torch.tensor(strengths, dtype=x0.dtype).to(x0.device)
        n, _, height, width = x0.shape
        images = (n, len(strengths), height, width)
        self.sums = {part: _Sum(x0, images) for signal in signals for part in PARTS.get(signal, (signal,))}
        self.largest = x0.new_full(images[:2], -torch.inf)
        self.end = torch.zeros(images[:2], dtype=torch.long, device=x0.device)
        self.curves: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, level: Level) -> Tensor:
        """The first signal at this level."""
        x, healthy, unguided = (self._scored(part) for part in (level.x, level.healthy, level.unguided))
        clean = self._scored(level.clean)[:, None]  # u_t
        free = guided(x, healthy, unguided, level.t, strengths=self.weights, schedule=self.schedule)
        estimate = free.clamp(-1, 1) if self.settings.clamp else free  # g_t [N, W, C, H, W]
        divergence = pixel_mean((estimate - clean).square())  # M_t
        error = (estimate - self.x0).square()
        self.curves.append((divergence, pixel_mean(error), pixel_mean((clean - self.x0).square())[:, 0]))
        new = divergence > self.largest
        self.largest = torch.where(new, divergence, self.largest)
        self.end.masked_fill_(new, level.number)
        for part, so_far in self.sums.items():
            signal = error if part == "error" else self._gradient(part, level.t, healthy, unguided)
            so_far.add(signal.mean(2), new)
        now = {part: so_far.now for part, so_far in self.sums.items()}
        return _of_parts(self.signals[0], now, torch.full_like(new, level.number == 0))

    def evidence(self) -> dict[str, Evidence]:
        """By signal."""
        divergence, guided_error, unguided_error = (torch.stack(curve, -1) for curve in zip(*self.curves, strict=True))
        levels = self.settings.levels[: len(self.curves)]
        end_step = torch.tensor(levels).to(self.end.device)[self.end]
        means = {part: so_far.at_end / self._counted(part)[..., None, None] for part, so_far in self.sums.items()}
        lasts = {part: so_far.last for part, so_far in self.sums.items()}
        return {
            signal: Evidence(
                replace(self.settings, levels=levels, signal=signal),
                self.strengths,
                divergence,
                guided_error,
                unguided_error,
                end_step,
                _of_parts(signal, means, self.end == 0),
                _of_parts(signal, lasts, self.end == 0),
            )
            for signal in self.signals
        }

    def _counted(self, part: str) -> Tensor:
        """[N, W], levels that a map is the mean of."""
        return self.end.clamp(min=1) if part == "gradient-above" else self.end + 1

    def _gradient(self, part: str, t: int, healthy: Tensor, unguided: Tensor) -> Tensor:
        """Appendix D: the squared gradient of log p(healthy | x_t), plain or with the weight it has in g_t - u_t.

        Plain, it is divided by 1 - a_t, which is 1e-4 at level 0: of a few levels, that one alone would be the map, and
        it is the one that knows least. `gradient-above` is the same without it (next to nothing of it, lest a slice
        whose end step it is have no map at all).
        """
        signal, spread = self.schedule.signal_and_noise(t, healthy)
        squared = (healthy - unguided).square()[:, None]
        if part == "gradient-weighted":
            return squared * (spread / signal) ** 2 * (1 + self.weights).square().view(-1, 1, 1, 1)
        plain = squared / spread**2
        lowest = part == "gradient-above" and t == self.settings.levels[0]
        return plain * LEFT_OUT if lowest else plain

    def _scored(self, x: Tensor) -> Tensor:
        return x if len(self.channels) == x.shape[1] else x.index_select(1, self.channels)


class _Sum:
    """Of a signal [N, W, H, W] over levels. It is copied aside whenever a slice's divergence sets a new maximum."""

    def __init__(self, x0: Tensor, images: tuple[int, ...]):
        self.whole, self.at_end, self.last = (x0.new_zeros(images) for _ in range(3))
        self.now = self.last

    def add(self, signal: Tensor, new: Tensor) -> None:
        self.now = signal.expand_as(self.whole)
        self.whole = self.whole + self.now
        self.at_end = torch.where(new[..., None, None], self.whole, self.at_end)
        self.last = torch.where(new[..., None, None], self.now, self.last)


def _of_parts(signal: str, parts: Mapping[str, Tensor], at_lowest: Tensor) -> Tensor:
    """A signal's maps [N, W, H, W] from those of its parts.

    `agreement` is a weighted geometric mean: high where the guided estimate errs and the label's gradient is large. At
    the lowest level [N, W] there is no gradient to agree with, and it is the error alone.
    """
    if signal != "agreement":
        return parts[signal]
    error, gradient = (parts[part] for part in PARTS[signal])
    return torch.where(at_lowest[..., None, None], error, error ** (1 - GRADIENT_SHARE) * gradient**GRADIENT_SHARE)


def pixel_mean(x: Tensor) -> Tensor:
    """[N, W, C, H, W] -> [N, W]. Rows first, so that a slice's sum has one order whatever else is in the batch."""
    return x.sum(-1).sum((-2, -1)) / (x.shape[-3] * x.shape[-2] * x.shape[-1])


def _check(
    x0: Tensor, settings: EvidenceSettings, strengths: Sequence[float], schedule: NoiseSchedule, seeds: Sequence[int]
) -> None:
    if x0.ndim != 4 or not len(x0):
        raise MethodError(f"slices must be [N, C, H, W], at least one; got {tuple(x0.shape)}")
    if settings.levels[0] < 0 or settings.levels[-1] >= len(schedule):
        raise MethodError(f"levels {settings.levels[0]} to {settings.levels[-1]} do not lie in 0..{len(schedule) - 1}")
    if settings.channels and max(settings.channels) >= x0.shape[1]:
        raise MethodError(f"scored channel {max(settings.channels)} of slices with {x0.shape[1]} channels")
    if not len(strengths) or len(set(strengths)) < len(strengths):
        raise MethodError(f"guidance strengths must be named once each, at least one; got {list(strengths)}")
    if not all(torch.isfinite(torch.tensor(float(w))) for w in strengths):
        raise MethodError(f"guidance strengths must be numbers; got {list(strengths)}")
    if len(seeds) != len(x0):
        raise MethodError(f"{len(seeds)} seeds for {len(x0)} slices; each slice needs one of its own")
