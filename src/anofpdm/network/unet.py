"""The U-Net that predicts noise: given a noisy slice, its noise level, and a label.

The label enters twice: added to the embedding of the noise level, and as one more key and value that every attention
block can look at. Both are tables with a row per label, so nothing of the label is computed anew from step to step.
"""

import functools
import importlib.util
import math
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.errors import ConfigError
from anofpdm.labels import NULL

Module = TypeVar("Module", bound=nn.Module)


MOST = 4096  # of anything; the largest published networks have a quarter of that


@dataclass(frozen=True)
class UNetConfig:
    in_channels: int
    n_labels: int = 3
    null_label: int = NULL
    channels: int = 128
    multipliers: tuple[int, ...] = (1, 1, 2, 3, 4)  # of `channels`, one per resolution
    blocks: int = 2  # residual blocks per resolution
    attention: tuple[int, ...] = (4, 8, 16)  # where: the image's side divided by this
    heads: int = 2
    dropout: float = 0.1

    def __post_init__(self) -> None:
        whole = (self.in_channels, self.n_labels, self.null_label, self.channels, self.blocks, self.heads)
        if any(type(n) is not int or not 0 <= n <= MOST for n in (*whole, *self.multipliers, *self.attention)):
            raise ConfigError(f"a U-Net is counted in whole numbers up to {MOST}, got {self}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ConfigError(f"a share of what is dropped lies from 0 to 1, got {self}")
        if len(self.multipliers) > 8 or self.blocks > 16 or min(*self.multipliers, self.blocks, self.heads) < 1:
            raise ConfigError(f"a U-Net needs blocks and heads, and not too many of them, got {self}")
        if self.in_channels < 1 or self.channels < 4 or self.channels % 4 or not self.multipliers:
            raise ConfigError(f"a U-Net needs input channels and a width that 4 divides, got {self}")
        if not 0 <= self.null_label < self.n_labels:
            raise ConfigError(f"null_label {self.null_label} is not one of {self.n_labels} labels")
        if any(self.channels * multiplier % self.heads for multiplier in self.multipliers):
            raise ConfigError(f"{self.heads} heads do not divide every width of {self}")

    @property
    def side_divisor(self) -> int:
        """Image sides must be a multiple of this."""
        return 2 ** (len(self.multipliers) - 1)


PRESETS: dict[str, dict[str, object]] = {
    "paper": {},
    "small": {"channels": 64},
    "tiny": {"channels": 32, "multipliers": (1, 2, 2, 3), "blocks": 1, "attention": (4, 8)},
}


def preset(name: str, in_channels: int, **changes: object) -> UNetConfig:
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return UNetConfig(in_channels, **{**PRESETS[name], **changes})  # type: ignore[arg-type]


class UNet(nn.Module):
    def __init__(self, config: UNetConfig):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.encoder = Encoder(config)
        width = self.encoder.out_channels
        self.middle = Stage(config, width, width, attend=True, blocks=2)
        self.decoder = Decoder(config, self.encoder.skip_channels)
        self.norm = ScaledNorm(config.channels)
        self.last = zeroed(nn.Conv2d(config.channels, config.in_channels, 3, padding=1))
        self.memory_format = torch.channels_last

    def as_in_a_textbook(self) -> "UNet":
        """Without our kernels and layout: what speeds are compared with, and what is best in float32."""
        self.memory_format = torch.contiguous_format
        for module in self.modules():
            if isinstance(module, ScaledNorm | Attention):
                module.fused = False
        return self

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        """x [N, C, H, W], t [N] levels -> predicted noise [N, C, H, W], float32.

        Labels are [N], or shares of each label [N, n_labels] for something in between; none given: all NULL.
        """
        if labels is None:
            labels = torch.full((len(x),), self.config.null_label, device=x.device)
        embedding = self.embedding(t, labels)
        skips = self.encoder(x.contiguous(memory_format=self.memory_format), embedding, labels)
        x = self.middle(skips[-1], embedding, labels)
        x = self.decoder(x, skips, embedding, labels)
        if self.training:
            return self.last(self.norm(x)).float()
        # Where answers to two labels are subtracted, the last layer's rounding would be most of the difference.
        with torch.autocast(x.device.type, enabled=False):
            if asked_on_gpu(self.norm, x):
                return last_layer_on_gpu(x, self.norm.norm, self.last)
            return self.last(self.norm(x.float()))


class Embedding(nn.Module):
    """Noise level and label as one vector [N, 4 * channels]."""

    def __init__(self, config: UNetConfig):
        super().__init__()
        self.width = config.channels
        self.level = nn.Sequential(
            nn.Linear(self.width, 4 * self.width), nn.SiLU(), nn.Linear(4 * self.width, 4 * self.width)
        )
        self.label = label_table(config.n_labels, 4 * self.width)

    def forward(self, t: Tensor, labels: Tensor) -> Tensor:
        waves = sinusoids(t, self.width).to(self.label.weight.dtype)
        return F.silu(self.level(waves) + looked_up(self.label, labels))


def sinusoids(t: Tensor, width: int) -> Tensor:
    """[N] -> [N, width]: cosines and sines of t at wavelengths from 2 pi to 20,000 pi."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = t.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Encoder(nn.Module):
    """The way down. Its outputs at every block are what the decoder is given."""

    def __init__(self, config: UNetConfig):
        super().__init__()
        self.first = nn.Conv2d(config.in_channels, config.channels, 3, padding=1)
        self.stages, self.downs = nn.ModuleList(), nn.ModuleList()
        width, self.skip_channels = config.channels, [config.channels]
        for depth, multiplier in enumerate(config.multipliers):
            if depth:
                self.downs.append(conv3(width, width, stride=2))
                self.skip_channels.append(width)
            for _ in range(config.blocks):
                out = config.channels * multiplier
                self.stages.append(Stage(config, width, out, attend=2**depth in config.attention))
                self.skip_channels.append(width := out)
        self.blocks, self.out_channels = config.blocks, width

    def forward(self, x: Tensor, embedding: Tensor, labels: Tensor) -> list[Tensor]:
        skips = [self.first(x)]
        for number, stage in enumerate(self.stages):
            if number and number % self.blocks == 0:
                skips.append(self.downs[number // self.blocks - 1](skips[-1]))
            skips.append(stage(skips[-1], embedding, labels))
        return skips


class Decoder(nn.Module):
    """The way up, joined at every block by what the encoder saw there."""

    def __init__(self, config: UNetConfig, skip_channels: list[int]):
        super().__init__()
        self.stages, self.ups = nn.ModuleList(), nn.ModuleList()
        waiting, width = list(skip_channels), skip_channels[-1]
        for depth, multiplier in reversed(list(enumerate(config.multipliers))):
            out = config.channels * multiplier
            for _ in range(config.blocks + 1):
                joined = width + waiting.pop()
                self.stages.append(Stage(config, joined, out, attend=2**depth in config.attention))
                width = out
            if depth:
                self.ups.append(conv3(width, width))
        self.blocks = config.blocks + 1

    def forward(self, x: Tensor, skips: list[Tensor], embedding: Tensor, labels: Tensor) -> Tensor:
        for number, stage in enumerate(self.stages):
            if number and number % self.blocks == 0:
                x = self.ups[number // self.blocks - 1](doubled(x))
            x = stage(x, embedding, labels, skips[-1 - number])
        return x


def doubled(x: Tensor) -> Tensor:
    """Every pixel becomes four. F.interpolate does the same, but under autocast in float32."""
    n, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1)[:, :, None, :, None]  # [N, H, 1, W, 1, C]
    spread = rows.expand(-1, -1, 2, -1, 2, -1).reshape(n, 2 * height, 2 * width, channels)
    return spread.permute(0, 3, 1, 2)


class Stage(nn.Module):
    """Residual blocks, with attention after the first where asked for."""

    def __init__(self, config: UNetConfig, channels: int, out_channels: int, *, attend: bool, blocks: int = 1):
        super().__init__()
        self.blocks = nn.ModuleList(
            ResidualBlock(config, channels if number == 0 else out_channels, out_channels) for number in range(blocks)
        )
        self.attention = Attention(config, out_channels) if attend else None

    def forward(self, x: Tensor, embedding: Tensor, labels: Tensor, skip: Tensor | None = None) -> Tensor:
        x = self.blocks[0](x, embedding, skip)
        if self.attention is not None:
            x = self.attention(x, labels)
        for block in self.blocks[1:]:
            x = block(x, embedding)
        return x


class ResidualBlock(nn.Module):
    def __init__(self, config: UNetConfig, channels: int, out_channels: int):
        super().__init__()
        self.norm_in, self.norm_out = ScaledNorm(channels), ScaledNorm(out_channels, config.dropout)
        self.conv_in = conv3(channels, out_channels)
        self.conv_out = zeroed(conv3(out_channels, out_channels))
        self.modulation = nn.Linear(4 * config.channels, 2 * out_channels)
        self.shortcut = nn.Identity() if channels == out_channels else nn.Conv2d(channels, out_channels, 1, bias=False)

    def forward(self, x: Tensor, embedding: Tensor, skip: Tensor | None = None) -> Tensor:
        """x [N, channels, H, W], or with skip so many together; embedding [N, 4 * width] -> [N, out_channels, H, W]."""
        scale, shift = self.modulation(embedding).chunk(2, dim=1)
        if skip is not None and asked_on_gpu(self.norm_in, x):
            hidden = self.conv_in(norm_of_two_on_gpu(x, skip, self.norm_in.norm))
            return self._added(self.conv_out(self.norm_out(hidden, scale, shift)), x, skip)
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        hidden = self.conv_in(self.norm_in(x))
        return self.shortcut(x) + self.conv_out(self.norm_out(hidden, scale, shift))

    def _added(self, result: Tensor, x: Tensor, skip: Tensor) -> Tensor:
        """The result and the shortcut of x and skip, which are never joined: a tenth of all time went there."""
        result = result.contiguous(memory_format=torch.channels_last)  # as it should be
        flat = result.permute(0, 2, 3, 1).view(-1, result.shape[1])  # [N * H * W, C], the same memory
        start = 0
        for part in (x, skip):
            weight = self.shortcut.weight[:, start : start + part.shape[1], 0, 0].to(flat.dtype)  # type: ignore[index]
            flat.addmm_(part.permute(0, 2, 3, 1).flatten(0, 2).to(flat.dtype), weight.T)
            start += part.shape[1]
        return result


class Attention(nn.Module):
    """Every place looks at every other, and at one token that says which label is asked for."""

    def __init__(self, config: UNetConfig, channels: int):
        super().__init__()
        self.heads, self.fused = config.heads, True
        self.norm = nn.GroupNorm(groups_of(channels), channels)
        self.places = nn.Linear(channels, 3 * channels)
        self.label = label_table(config.n_labels, 2 * channels)  # a key and a value for each
        self.out = zeroed(nn.Linear(channels, channels))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x [N, C, H, W]."""
        n, channels, height, width = x.shape
        normal = norm_on_gpu(x, self.norm, activate=False) if x.is_cuda and self.fused else self.norm(x)
        places = normal.flatten(2).transpose(1, 2)  # [N, HW, C], no copy on a GPU: channels come last in memory
        query, key, value = self._split(self.places(places), 3)  # each [N, heads, HW, C / heads]
        label_key, label_value = self._split(looked_up(self.label, labels)[:, None].to(key.dtype), 2)
        key, value = torch.cat([key, label_key], dim=2), torch.cat([value, label_value], dim=2)
        seen = F.scaled_dot_product_attention(query, key, value)
        seen = self.out(seen.transpose(1, 2).reshape(n, height * width, channels))
        return x + seen.transpose(1, 2).reshape(n, channels, height, width)

    def _split(self, x: Tensor, parts: int) -> list[Tensor]:
        """[N, L, parts * C] -> parts of [N, heads, L, C / heads]."""
        n, length, channels = x.shape
        split = x.view(n, length, parts, self.heads, channels // parts // self.heads)
        return [part.squeeze(2).transpose(1, 2) for part in split.split(1, dim=2)]


class ScaledNorm(nn.Module):
    """Group norm, scaled and shifted where asked for, then SiLU, then dropout."""

    def __init__(self, channels: int, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.GroupNorm(groups_of(channels), channels)
        self.dropout, self.fused = dropout, True

    def forward(self, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """x [N, C, H, W]; scale and shift [N, C]."""
        norm = self.norm
        if x.is_cuda and self.fused:
            active = norm_on_gpu(x, norm, scale, shift, activate=True)
        else:
            active = F.silu(modulated(norm(x), scale, shift))
        return F.dropout(active, self.dropout, self.training)


def modulated(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    if scale is None or shift is None:
        return x
    return x * (1 + scale[:, :, None, None]) + shift[:, :, None, None]


def norm_on_gpu(
    x: Tensor, norm: nn.GroupNorm, scale: Tensor | None = None, shift: Tensor | None = None, *, activate: bool
) -> Tensor:
    """By our own kernels, which keep channels last in memory; in plain steps where there is no Triton."""
    if not has_triton():
        plain = modulated(norm(x), scale, shift)
        return F.silu(plain) if activate else plain
    from anofpdm.network.kernels.fused_norm import norm_silu

    groups = norm.num_groups
    return norm_silu(x, norm.weight, norm.bias, groups=groups, scale=scale, shift=shift, activate=activate)


def asked_on_gpu(norm: ScaledNorm, x: Tensor) -> bool:
    """Not in training, and where our own kernels run."""
    return x.is_cuda and norm.fused and not norm.training and not torch.is_grad_enabled() and has_triton()


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def norm_of_two_on_gpu(x: Tensor, skip: Tensor, norm: nn.GroupNorm) -> Tensor:
    from anofpdm.network.kernels.fused_norm import norm_silu_of_two

    return norm_silu_of_two(x, skip, norm.weight, norm.bias, groups=norm.num_groups)


def last_layer_on_gpu(x: Tensor, norm: nn.GroupNorm, conv: nn.Conv2d) -> Tensor:
    from anofpdm.network.kernels.last_layer import last_layer

    return last_layer(x, norm, conv)


def looked_up(table: nn.Embedding, labels: Tensor) -> Tensor:
    """Labels [N], or shares of each label [N, n_labels] -> [N, width]."""
    found: Tensor = labels.to(table.weight.dtype) @ table.weight if labels.ndim == 2 else table(labels)
    return found


def label_table(n_labels: int, width: int) -> nn.Embedding:
    """As large as what it is added to, or a network hardly learns to listen: begun at a fiftieth of it, the rows had
    not parted after 10,000 steps."""
    table = nn.Embedding(n_labels, width)
    nn.init.normal_(table.weight, std=1.0)
    return table


def conv3(channels: int, out_channels: int, *, stride: int = 1) -> nn.Conv2d:
    """Without a bias: the norm after it has one, and adding it and its gradient took a fifth of a training step."""
    return nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)


def groups_of(channels: int) -> int:
    """32 groups as everyone has them, fewer where a group would be less than four channels wide."""
    return next(n for n in (32, 16, 8, 4, 2, 1) if channels % n == 0 and channels // n >= min(4, channels))


def zeroed(module: Module) -> Module:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module
