"""Configuration of the U-Net, its presets, and everything that is stored beside a network's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anofpdm import __version__
from anofpdm.errors import ConfigError, ModelError
from anofpdm.labels import NULL
from anofpdm.network.checkpoint import FORMAT
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.options import Preset, Task, parse
from anofpdm.util.artifacts import convert

MAX_VALUE = 4096  # of any setting; the largest published networks need a quarter of that
MAX_SIZE = 4096  # pixels along a side of a slice


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
        if not all(0 <= number <= MAX_VALUE for number in (*counts, *self.multipliers, *self.attention)):
            raise ConfigError(f"sizes of a U-Net must be integers from 0 to {MAX_VALUE}, got {self}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and less than 1, got {self}")
        if len(self.multipliers) > 8 or self.blocks > 16 or min(*self.multipliers, self.blocks, self.heads) < 1:
            raise ConfigError(f"a U-Net needs 1 to 8 resolutions, 1 to 16 blocks, and attention heads, got {self}")
        if self.in_channels < 1 or self.channels < 4 or self.channels % 4 or not self.multipliers:
            raise ConfigError(f"a U-Net needs input channels and a width divisible by 4, got {self}")
        if self.null_label >= self.n_labels:
            raise ConfigError(f"null_label {self.null_label} is not one of {self.n_labels} labels")
        if any(self.channels * multiplier % self.heads for multiplier in self.multipliers):
            raise ConfigError(f"{self.heads} heads do not divide every width of {self}")

    @property
    def side_divisor(self) -> int:
        """Image sides must be a multiple of this."""
        return 2 ** (len(self.multipliers) - 1)


@dataclass(frozen=True)
class ModelConfig:
    """In the header of a model's weights, and of the state of its training."""

    task: Task
    network: UNetConfig
    modalities: tuple[str, ...]  # in the order of the network's channels
    size: int  # slices are size x size
    step: int = 0
    training: TrainingConfig = field(default_factory=TrainingConfig)
    cohort: dict[str, Any] = field(default_factory=dict)  # hashes of slices, labels and split
    expects: dict[str, Any] = field(default_factory=dict)  # of scans
    format: int = FORMAT
    anofpdm: str = __version__

    def __post_init__(self) -> None:
        channels = self.network.in_channels
        if len(self.modalities) != channels or len(set(self.modalities)) != channels:
            raise ValueError(f"{len(self.modalities)} modalities for a network with {channels} input channels")
        if not 0 < self.size <= MAX_SIZE or self.size % self.network.side_divisor:
            raise ValueError(f"slice size {self.size}")

    @classmethod
    def from_header(cls, header: Mapping[str, Any], file: Path, remedy: str = "train it again") -> "ModelConfig":
        try:
            return convert(cls, header)
        except (ConfigError, ValueError) as problem:
            message = f"{file}: invalid configuration, or that of another version ({problem}); {remedy}"
            raise ModelError(message) from None


PRESETS: dict[Preset, dict[str, Any]] = {
    Preset.PAPER: {},
    Preset.SMALL: {"channels": 64},
    Preset.COMPACT: {"channels": 48, "multipliers": (1, 1, 2, 3, 3)},
    Preset.TINY: {"channels": 32, "multipliers": (1, 2, 2, 3), "blocks": 1, "attention": (4, 8)},
}


def preset(name: str, in_channels: int, **changes: Any) -> UNetConfig:
    return UNetConfig(in_channels, **{**PRESETS[parse(Preset, name)], **changes})
