"""Evidence: what one pass through the noise levels tells of each slice, for any number of guidance strengths."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from anofpdm.choices import Encoding, Signal
from anofpdm.errors import MethodError
from anofpdm.network.schedule import NoiseSchedule

AUTHORS_TOP = 600  # the authors' code uses levels 0 .. 599
BATCH = 50  # slices
CURVES = ("divergence", "mse_guided", "mse_unguided", "end_step")  # tensors of evidence, besides the maps
GRADIENT_SHARE = 1 / 3  # default exponent of the gradient in `agreement`; the error has the rest
LOW_SHARE = 0.1  # levels up to this share of the highest one are low: `gradient-above` leaves them out


@dataclass(frozen=True)
class EvidenceSettings:
    """How evidence is gathered. A calibration holds for one set of these."""

    levels: tuple[int, ...]
    channels: tuple[int, ...]  # the scored ones
    encoding: Encoding = Encoding.DDIM
    signal: Signal = Signal.ERROR
    clamp: bool = True
    gradient_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = GRADIENT_SHARE  # of maps of agreement

    def __post_init__(self) -> None:
        if self.signal == Signal.AUTO:
            raise MethodError("evidence needs a signal; 'auto' is for calibration")
        if not self.levels or self.levels[0] < 0 or any(a >= b for a, b in pairwise(self.levels)):
            raise MethodError(f"noise levels must increase from 0 or more, at least one of them; got {[*self.levels]}")
        if not self.channels or len(set(self.channels)) < len(self.channels) or min(self.channels) < 0:
            raise MethodError(f"scored channels must be distinct, at least one of them; got {list(self.channels)}")

    @property
    def highest_low(self) -> float:
        """Levels up to this one are low."""
        return LOW_SHARE * self.levels[-1]


@dataclass(frozen=True)
class EvidenceRequest:
    """What evidence is gathered, and in which portions."""

    settings: EvidenceSettings
    strengths: Sequence[float]
    device: torch.device
    batch: int = BATCH
    signals: tuple[Signal, ...] = ()  # besides that of the settings
    schedule: NoiseSchedule = field(default_factory=NoiseSchedule.linear)
    keep: Callable[["Evidence"], "Evidence"] = lambda batch: batch  # what is kept of a batch

    def __post_init__(self) -> None:
        levels, strengths = self.settings.levels, self.strengths
        if levels[-1] >= len(self.schedule):
            raise MethodError(f"noise levels must lie in 0..{len(self.schedule) - 1}; got {list(levels)}")
        if not len(strengths) or len(set(strengths)) < len(strengths) or not all(map(math.isfinite, strengths)):
            raise MethodError(
                f"guidance strengths must be finite and distinct, at least one of them; got {list(strengths)}"
            )

    def in_even_batches(self, count: int) -> "EvidenceRequest":
        """Batches of nearly equal size for so many slices: on a GPU another size takes a second to prepare."""
        return replace(self, batch=-(-count // max(1, -(-count // self.batch)))) if count else self

    @property
    def components(self) -> tuple[Signal, ...]:
        """Of all signals, each once."""
        signals = (self.settings.signal, *self.signals)
        return tuple(dict.fromkeys(part for signal in signals for part in components(signal)))


def spread_levels(count: int, top: int = AUTHORS_TOP) -> tuple[int, ...]:
    """`count` levels of 0 .. top - 1, equally spaced from 0: 60 of 600 are every tenth."""
    if not 1 <= count <= top:
        raise MethodError(f"{count} levels do not fit into {top}")
    return tuple(number * top // count for number in range(count))


class SignalMaps(NamedTuple):
    """Of one component of a signal, each [N, W, H, W]."""

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
    maps_by_signal: Mapping[Signal, SignalMaps]  # of the components of the signals that were gathered

    def __len__(self) -> int:
        return len(self.end_step)

    @property
    def maps(self) -> Tensor:
        """[N, W, H, W], the aggregated maps H."""
        return self._combine({signal: maps.mean for signal, maps in self.maps_by_signal.items()})

    @property
    def last_maps(self) -> Tensor:
        """[N, W, H, W], the signal at the end step."""
        return self._combine({signal: maps.last for signal, maps in self.maps_by_signal.items()})

    def _combine(self, maps: Mapping[Signal, Tensor]) -> Tensor:
        return combine(self.settings, maps, self.end_step <= self.settings.highest_low)

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
        column = [self.strengths.index(strength)]
        # The unguided curve has no axis of strengths.
        selected = self.map(lambda tensor: tensor if tensor is self.mse_unguided else tensor[:, column])
        return replace(selected, strengths=(strength,))

    def with_maps_of(self, settings: EvidenceSettings) -> "Evidence":
        """The same evidence, with the maps of another signal whose components were gathered in the same pass."""
        return replace(self, settings=settings)

    def __getitem__(self, rows: slice | Tensor) -> "Evidence":
        """Of some of the slices."""
        return self.map(lambda tensor: tensor[rows])

    def map(self, change: Callable[[Tensor], Tensor]) -> "Evidence":
        """The same change applied to every tensor."""
        return _merge([self], lambda tensors: change(tensors[0]))


def concatenate(batches: Iterable[Evidence]) -> Evidence:
    """The evidence of several batches as one."""
    return _merge(list(batches), torch.cat)


def _merge(parts: Sequence[Evidence], merge: Callable[[Any], Tensor]) -> Evidence:
    """Every tensor made from those of the parts."""
    tensors: dict[str, Any] = {name: merge([getattr(part, name) for part in parts]) for name in CURVES}
    maps_by_signal = {
        signal: SignalMaps(*map(merge, zip(*(part.maps_by_signal[signal] for part in parts), strict=True)))
        for signal in parts[0].maps_by_signal
    }
    return replace(parts[0], **tensors, maps_by_signal=maps_by_signal)


# ---- signals ---------------------------------------------------------------------------------------------------------
# What is averaged over noise levels into an anomaly map (running_evidence.py). `error` is the paper's S_t. `gradient`
# and `gradient-weighted` are those of its Appendix D. `gradient-above` and `agreement` are ours (docs/method.md).


def components(signal: Signal) -> tuple[Signal, ...]:
    """The signals whose maps it combines, or itself: what is summed over levels."""
    return (Signal.ERROR, Signal.GRADIENT_ABOVE) if signal == Signal.AGREEMENT else (signal,)


def combine(settings: EvidenceSettings, maps: Mapping[Signal, Tensor], is_low: Tensor) -> Tensor:
    """A signal's maps [N, W, H, W] from those of its components.

    `agreement` is a weighted geometric mean: high where both the error and the gradient are. Where only low levels were
    averaged (`is_low` [N, W]) there is no gradient, and it equals the error.
    """
    if settings.signal != Signal.AGREEMENT:
        return maps[settings.signal]
    parts = [maps[part] for part in components(settings.signal)]
    error, gradient = (part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts)
    mean = error ** (1 - settings.gradient_share) * gradient**settings.gradient_share
    return torch.where(is_low[..., None, None], error, mean)
