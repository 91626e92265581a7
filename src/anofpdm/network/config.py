"""Configuration of the U-Net, its presets, and everything that is stored beside a network's weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from anofpdm import __version__
from anofpdm.choices import Preset, Task, parse
from anofpdm.errors import ConfigError, ModelError
from anofpdm.labels import NULL
from anofpdm.network.checkpoint import FORMAT
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.util.artifacts import convert

MOST = 4096  # the largest published networks need a quarter of that
Count = Annotated[int, Meta(ge=1, le=MOST)]


@dataclass(frozen=True)
class UNetConfig:
    in_channels: Count
    n_labels: Count = 3
    null_label: Annotated[int, Meta(ge=0)] = NULL
    channels: Annotated[int, Meta(ge=4, le=MOST, multiple_of=4)] = 128
    multipliers: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=8)] = (1, 1, 2, 3, 4)  # of `channels`
    blocks: Annotated[int, Meta(ge=1, le=16)] = 2  # residual blocks per resolution
    attention: tuple[Count, ...] = (4, 8, 16)  # downsampling factors at which there is attention
    heads: Count = 2
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.1

    def __post_init__(self) -> None:
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
    size: Count  # slices are size x size
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
        if self.size % self.network.side_divisor:
            raise ValueError(f"slices of {self.size} x {self.size} cannot be halved as often as this network does")

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
