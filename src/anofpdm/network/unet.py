"""The U-Net that predicts noise, given a noisy slice, its noise level, and a label.

The label enters twice: added to the embedding of the noise level, and as an additional key and value of every attention
block. Both are embedding tables with a row per label.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.network.blocks import (
    Attention,
    ScaledNorm,
    Stage,
    UpConvolution,
    conv3,
    embed_labels,
    label_table,
    use_inference_kernels,
    zero_init,
)
from anofpdm.network.config import UNetConfig
from anofpdm.network.fast.upsampled import UpsampledConvolution


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
        self.last = zero_init(nn.Conv2d(config.channels, config.in_channels, 3, padding=1))
        self.memory_format = torch.channels_last

    def use_plain_layers(self) -> "UNet":
        """Use plain torch layers and layout, in place: the reference for speed, and fastest in float32."""
        self.memory_format = torch.contiguous_format
        for module in self.modules():
            if isinstance(module, ScaledNorm | Attention):
                module.fused = False
        return self

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        """x [N, C, H, W], t [N] levels -> predicted noise [N, C, H, W], float32.

        Labels are [N], or weights of each label [N, n_labels].
        """
        embedding = self.embedding(t, labels)
        skips = self.encoder(x.contiguous(memory_format=self.memory_format), embedding, labels)
        x = self.middle(skips[-1], embedding, labels)
        x = self.decoder(x, skips, embedding, labels)
        if self.training:
            return self.last(self.norm(x)).float()
        # In float32: the method subtracts predictions for two labels, and this layer's rounding would dominate.
        with torch.autocast(x.device.type, enabled=False):
            if use_inference_kernels(self.norm, x):
                from anofpdm.network.fast.last_layer import last_layer

                return last_layer(x, self.norm.norm, self.last)
            return self.last(self.norm(x.float()))


class Embedding(nn.Module):
    """Noise levels and labels -> [N, 4 * channels]."""

    def __init__(self, config: UNetConfig):
        super().__init__()
        self.width = config.channels
        self.level = nn.Sequential(
            nn.Linear(self.width, 4 * self.width), nn.SiLU(), nn.Linear(4 * self.width, 4 * self.width)
        )
        self.label = label_table(config.n_labels, 4 * self.width)

    def forward(self, t: Tensor, labels: Tensor) -> Tensor:
        waves = sinusoids(t, self.width).to(self.label.weight.dtype)
        return F.silu(self.level(waves) + embed_labels(self.label, labels))


def sinusoids(t: Tensor, width: int) -> Tensor:
    """[N] -> [N, width]: cosines and sines of t at wavelengths from 2 pi to 20,000 pi."""
    half = width // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = t.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Encoder(nn.Module):
    """Returns the outputs of all blocks, as skip connections."""

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
    """Every block takes the skip connection of the corresponding encoder block."""

    def __init__(self, config: UNetConfig, skip_channels: list[int]):
        super().__init__()
        self.stages, self.ups = nn.ModuleList(), nn.ModuleList()
        remaining, width = list(skip_channels), skip_channels[-1]
        for depth, multiplier in reversed(list(enumerate(config.multipliers))):
            out = config.channels * multiplier
            for _ in range(config.blocks + 1):
                concatenated = width + remaining.pop()
                self.stages.append(Stage(config, concatenated, out, attend=2**depth in config.attention))
                width = out
            if depth:
                self.ups.append(UpConvolution(width, width, 3, padding=1, bias=False))
        self.blocks = config.blocks + 1

    def skip_upsampling(self) -> None:
        """For inference on a CPU."""
        self.ups = nn.ModuleList(UpsampledConvolution(up) if isinstance(up, UpConvolution) else up for up in self.ups)

    def forward(self, x: Tensor, skips: list[Tensor], embedding: Tensor, labels: Tensor) -> Tensor:
        for number, stage in enumerate(self.stages):
            if number and number % self.blocks == 0:
                x = self.ups[number // self.blocks - 1](x)
            x = stage(x, embedding, labels, skips[-1 - number])
        return x
