"""Evidence: what one pass through the noise levels tells of each slice, for any number of guidance strengths."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anofpdm.errors import MethodError
from anofpdm.method.signals import COMPONENTS, GRADIENT_SHARE, LOW_SHARE, combine
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
    gradient_share: float = GRADIENT_SHARE  # of maps of agreement

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
        if not isinstance(self.gradient_share, int | float) or not 0 <= self.gradient_share <= 1:
            raise MethodError(f"the share of the gradient must lie in 0 to 1; got {self.gradient_share}")
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

    def with_maps_of(self, settings: EvidenceSettings) -> "Evidence":
        """With the maps of these settings; those of agreement from its components, where they were gathered."""
        both = COMPONENTS.get(settings.signal, ())
        if not both or not set(both) <= set(self.maps_by_signal):
            return self.with_signal(settings.signal)
        ends_low = self.end_step <= LOW_SHARE * settings.levels[-1]

        def combined(of: Callable[[SignalMaps], Tensor]) -> Tensor:
            parts = {one: of(self.maps_by_signal[one]).float() for one in both}
            return combine(settings.signal, parts, ends_low, settings.gradient_share)

        agreement = SignalMaps(combined(lambda maps: maps.mean), combined(lambda maps: maps.last))
        maps = {**self.maps_by_signal, settings.signal: agreement}
        return replace(self, settings=settings, maps_by_signal=maps)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Evidence":
        """The same change applied to every tensor: moved to another device, or some of the slices taken."""
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in CURVES}
        maps = {signal: SignalMaps(*map(change, both)) for signal, both in self.maps_by_signal.items()}
        return replace(self, **tensors, maps_by_signal=maps)


def concatenate(batches: Iterable[Evidence]) -> Evidence:
    """The evidence of several batches as one, on the CPU."""
    parts = [batch.map(Tensor.cpu) for batch in batches]
    tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in CURVES}
    maps = {
        signal: SignalMaps(*map(torch.cat, zip(*(part.maps_by_signal[signal] for part in parts), strict=True)))
        for signal in parts[0].maps_by_signal
    }
    return replace(parts[0], **tensors, maps_by_signal=maps)
