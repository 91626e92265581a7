"""Evidence: what one pass through the noise levels tells of each slice, for any number of guidance strengths."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anofpdm.errors import MethodError
from anofpdm.method.signals import GRADIENT_SHARE, LOW_SHARE, combine
from anofpdm.options import Encoding, Signal

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
        if self.signal == Signal.AUTO:
            raise MethodError("evidence needs a signal; 'auto' is for calibration")
        if not self.levels or any(a >= b for a, b in pairwise(self.levels)):
            raise MethodError(f"noise levels must increase, at least one of them; got {list(self.levels)}")
        if not self.channels or len(set(self.channels)) < len(self.channels) or min(self.channels) < 0:
            raise MethodError(f"scored channels must be distinct, at least one of them; got {list(self.channels)}")
        if not 0 <= self.gradient_share <= 1:
            raise MethodError(f"the share of the gradient must lie in 0 to 1; got {self.gradient_share}")
        if self.levels[0] < 0:
            raise MethodError(f"noise levels must not be negative; got {list(self.levels)}")


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
        ends_low = self.end_step <= LOW_SHARE * self.settings.levels[-1]
        return combine(self.settings.signal, maps, ends_low, self.settings.gradient_share)

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

    def map(self, change: Callable[[Tensor], Tensor]) -> "Evidence":
        """The same change applied to every tensor: moved to another device, or some of the slices taken."""
        tensors: dict[str, Any] = {name: change(getattr(self, name)) for name in CURVES}
        maps_by_signal = {signal: SignalMaps(*map(change, maps)) for signal, maps in self.maps_by_signal.items()}
        return replace(self, **tensors, maps_by_signal=maps_by_signal)


def concatenate(batches: Iterable[Evidence]) -> Evidence:
    """The evidence of several batches as one."""
    parts = list(batches)
    tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in CURVES}
    maps_by_signal = {
        signal: SignalMaps(*map(torch.cat, zip(*(part.maps_by_signal[signal] for part in parts), strict=True)))
        for signal in parts[0].maps_by_signal
    }
    return replace(parts[0], **tensors, maps_by_signal=maps_by_signal)
