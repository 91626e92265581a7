"""Configuration of the U-Net, and its presets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anofpdm.errors import ConfigError, ModelError
from anofpdm.labels import NULL
from anofpdm.options import Preset, parse

MAX_VALUE = 4096  # of any setting; the largest published networks need a quarter of that


@dataclass(frozen=True)
class UNetConfig:
    in_channels: int
    n_labels: int = 3
    null_label: int = NULL
    channels: int = 128
    multipliers: tuple[int, ...] = (1, 1, 2, 3, 4)  # of `channels`, one per resolution
    blocks: int = 2  # residual blocks per resolution
    attention: tuple[int, ...] = (4, 8, 16)  # downsampling factors at which there is attention
    heads: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        counts = (self.in_channels, self.n_labels, self.null_label, self.channels, self.blocks, self.heads)
        if any(type(n) is not int or not 0 <= n <= MAX_VALUE for n in (*counts, *self.multipliers, *self.attention)):
            raise ConfigError(f"sizes of a U-Net must be integers from 0 to {MAX_VALUE}, got {self}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and less than 1, got {self}")
        if len(self.multipliers) > 8 or self.blocks > 16 or min(*self.multipliers, self.blocks, self.heads) < 1:
            raise ConfigError(f"a U-Net needs 1 to 8 resolutions, 1 to 16 blocks, and attention heads, got {self}")
        if self.in_channels < 1 or self.channels < 4 or self.channels % 4 or not self.multipliers:
            raise ConfigError(f"a U-Net needs input channels and a width divisible by 4, got {self}")
        if not 0 <= self.null_label < self.n_labels:
            raise ConfigError(f"null_label {self.null_label} is not one of {self.n_labels} labels")
        if any(self.channels * multiplier % self.heads for multiplier in self.multipliers):
            raise ConfigError(f"{self.heads} heads do not divide every width of {self}")

    @property
    def side_divisor(self) -> int:
        """Image sides must be a multiple of this."""
        return 2 ** (len(self.multipliers) - 1)

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> "UNetConfig":
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in payload.items()}
        try:
            return cls(**values)
        except TypeError as problem:
            raise ModelError(f"a model of another version ({problem}); train it again") from None


PRESETS: dict[Preset, dict[str, Any]] = {
    Preset.PAPER: {},
    Preset.SMALL: {"channels": 64},
    Preset.COMPACT: {"channels": 48, "multipliers": (1, 1, 2, 3, 3)},
    Preset.TINY: {"channels": 32, "multipliers": (1, 2, 2, 3), "blocks": 1, "attention": (4, 8)},
}


def preset(name: str, in_channels: int, **changes: Any) -> UNetConfig:
    return UNetConfig(in_channels, **{**PRESETS[parse(Preset, name)], **changes})
