"""Blocks of the U-Net: residual blocks, attention, and the norm they share.

On a GPU with Triton, norms run as fused kernels, unless a module has `fused = False`.
"""

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.network.config import UNetConfig
from anofpdm.network.fast import has_triton

Module = TypeVar("Module", bound=nn.Module)


class Stage(nn.Module):
    """Residual blocks, optionally with attention after the first."""

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
        self.conv_out = zero_init(conv3(out_channels, out_channels))
        self.modulation = nn.Linear(4 * config.channels, 2 * out_channels)
        self.shortcut = nn.Identity() if channels == out_channels else nn.Conv2d(channels, out_channels, 1, bias=False)

    def forward(self, x: Tensor, embedding: Tensor, skip: Tensor | None = None) -> Tensor:
        """x [N, C, H, W] and skip, together `channels` wide; embedding [N, 4 * width] -> [N, out_channels, H, W]."""
        scale, shift = self.modulation(embedding).chunk(2, dim=1)
        if skip is not None and use_inference_kernels(self.norm_in, x):
            from anofpdm.network.fast.fused_norm import norm_silu_of_two

            hidden = self.conv_in(norm_silu_of_two(x, skip, self.norm_in.norm))
            return self._add_shortcut(self.conv_out(self.norm_out(hidden, scale, shift)), x, skip)
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        hidden = self.conv_in(self.norm_in(x))
        return self.shortcut(x) + self.conv_out(self.norm_out(hidden, scale, shift))

    def _add_shortcut(self, result: Tensor, x: Tensor, skip: Tensor) -> Tensor:
        """Result plus shortcut, without concatenating x and skip, which would take a tenth of the time."""
        result = result.contiguous(memory_format=torch.channels_last)
        flat = result.permute(0, 2, 3, 1).flatten(0, 2)  # [N * H * W, C], the same memory
        weights = self.shortcut.weight.flatten(1).split([x.shape[1], skip.shape[1]], dim=1)  # type: ignore[operator]
        for part, weight in zip((x, skip), weights, strict=True):
            flat.addmm_(part.permute(0, 2, 3, 1).flatten(0, 2), weight.T)
        return result


class Attention(nn.Module):
    """Self-attention over pixels, with one additional token for the label."""

    def __init__(self, config: UNetConfig, channels: int):
        super().__init__()
        self.heads, self.fused = config.heads, True
        self.norm = nn.GroupNorm(num_groups(channels), channels)
        self.places = nn.Linear(channels, 3 * channels)
        self.label = label_table(config.n_labels, 2 * channels)  # a key and a value per label
        self.out = zero_init(nn.Linear(channels, channels))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x [N, C, H, W]."""
        n, channels, height, width = x.shape
        projected = self.places(self._tokens(x))  # [N, HW + 1, 3 * C]
        projected[:, -1, channels:] = embed_labels(self.label, labels)  # key and value; its query is not used
        split = projected.view(n, height * width + 1, 3, self.heads, channels // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each [N, heads, HW + 1, C / heads]
        attended = F.scaled_dot_product_attention(query[:, :, :-1], key, value)
        attended = self.out(attended.transpose(1, 2).reshape(n, height * width, channels))
        return x + attended.transpose(1, 2).reshape(n, channels, height, width)

    def _tokens(self, x: Tensor) -> Tensor:
        """[N, HW + 1, C]: pixels, and a place for the label."""
        if use_inference_kernels(self, x):
            from anofpdm.network.fast.fused_norm import norm_tokens

            return norm_tokens(x, self.norm)
        pixels = apply_norm(x, self.norm, activate=False, fused=self.fused).flatten(2).transpose(1, 2)
        return F.pad(pixels, (0, 0, 0, 1))


class ScaledNorm(nn.Module):
    """Group norm, optional scale and shift, SiLU, dropout."""

    def __init__(self, channels: int, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups(channels), channels)
        self.dropout, self.fused = dropout, True

    def forward(self, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """x [N, C, H, W]; scale and shift [N, C]."""
        active = apply_norm(x, self.norm, scale, shift, fused=self.fused)
        return F.dropout(active, self.dropout, self.training)


def apply_norm(
    x: Tensor,
    norm: nn.GroupNorm,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    activate: bool = True,
    fused: bool = True,
) -> Tensor:
    """x [N, C, H, W]; scale and shift [N, C] or neither; without `activate`, no SiLU.

    Fused, on a GPU with Triton: by kernels, which keep channels last in memory. Otherwise by torch.
    """
    if x.is_cuda and fused and has_triton():
        from anofpdm.network.fast.fused_norm import norm_silu

        return norm_silu(x, norm, scale, shift, activate=activate)
    plain = norm(x)
    if scale is not None and shift is not None:
        plain = plain * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
    return F.silu(plain, inplace=not plain.requires_grad) if activate else plain


def use_inference_kernels(module: ScaledNorm | Attention, x: Tensor) -> bool:
    """Whether kernels that have no backward pass can be used."""
    return x.is_cuda and module.fused and not module.training and not torch.is_grad_enabled() and has_triton()


def embed_labels(table: nn.Embedding, labels: Tensor) -> Tensor:
    """Labels [N], or weights of each label [N, n_labels] -> [N, width]."""
    return labels.to(table.weight.dtype) @ table.weight if labels.ndim == 2 else F.embedding(labels, table.weight)


def label_table(n_labels: int, width: int) -> nn.Embedding:
    """Initialised on the scale of what it is added to: at a fiftieth of it, the network still ignored the label after
    10,000 steps."""
    table = nn.Embedding(n_labels, width)
    nn.init.normal_(table.weight, std=1.0)
    return table


def conv3(channels: int, out_channels: int, *, stride: int = 1) -> nn.Conv2d:
    """Without a bias: the following norm has one, and computing it took a fifth of a training step."""
    return nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)


def num_groups(channels: int) -> int:
    """32 groups; fewer if a group would have less than four channels."""
    return next(n for n in (32, 16, 8, 4, 2, 1) if channels % n == 0 and channels // n >= min(4, channels))


def zero_init(module: Module) -> Module:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


class UpConvolution(nn.Conv2d):
    """A convolution of the image upsampled by 2."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(upsample(x))


def upsample(x: Tensor) -> Tensor:
    """Nearest-neighbour, by 2. Same as F.interpolate, which autocast would run in float32."""
    pixels = x.permute(0, 2, 3, 1)  # [N, H, W, C]
    # A GPU copies sixteen bytes at a time; such a view has no gradient.
    in_blocks = x.is_cuda and not torch.is_grad_enabled() and pixels.is_contiguous()
    in_blocks = in_blocks and x.shape[1] * x.element_size() % 16 == 0
    if in_blocks:
        pixels = pixels.view(torch.complex128)
    n, height, width, channels = pixels.shape
    blocks = pixels[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    doubled = blocks.reshape(n, 2 * height, 2 * width, channels)
    return (doubled.view(x.dtype) if in_blocks else doubled).permute(0, 3, 1, 2)
