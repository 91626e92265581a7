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
        """x [N, C, H, W] and skip, together `channels` wide; embedding [M, 4 * width] -> [M, out_channels, H, W].

        M is N or a multiple, without a skip: what does not depend on the embedding is computed once.
        """
        scale, shift = self.modulation(embedding).chunk(2, dim=1)
        if skip is not None and use_inference_kernels(self.norm_in, x):
            from anofpdm.network.fast.fused_norm import norm_silu_of_two

            norm = self.norm_in.norm
            hidden = self.conv_in(norm_silu_of_two(x, skip, norm.weight, norm.bias, groups=norm.num_groups))
            return self._add_shortcut(self.conv_out(self.norm_out(hidden, scale, shift)), x, skip)
        if skip is not None:
            x = torch.cat([x, skip], dim=1)
        hidden = repeat(self.conv_in(self.norm_in(x)), len(embedding))
        return repeat(self.shortcut(x), len(embedding)) + self.conv_out(self.norm_out(hidden, scale, shift))

    def _add_shortcut(self, result: Tensor, x: Tensor, skip: Tensor) -> Tensor:
        """Result plus shortcut, without concatenating x and skip, which would take a tenth of the time."""
        result = result.contiguous(memory_format=torch.channels_last)
        flat = result.permute(0, 2, 3, 1).view(-1, result.shape[1])  # [N * H * W, C], the same memory
        weights = self.shortcut.weight[:, :, 0, 0].split([x.shape[1], skip.shape[1]], dim=1)  # type: ignore[index]
        for part, weight in zip((x, skip), weights, strict=True):
            flat.addmm_(part.permute(0, 2, 3, 1).flatten(0, 2).to(flat.dtype), weight.to(flat.dtype).T)
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
        tokens = self._tokens_in_place if use_inference_kernels(self, x) else self._tokens
        attended = F.scaled_dot_product_attention(*tokens(x, embed_labels(self.label, labels)))
        attended = self.out(attended.transpose(1, 2).reshape(n, height * width, channels))
        return x + attended.transpose(1, 2).reshape(n, channels, height, width)

    def _tokens(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, heads, HW, C / heads]; keys and values [N, heads, HW + 1, C / heads]."""
        normal = apply_norm(x, self.norm, activate=False, fused=self.fused)
        places = normal.flatten(2).transpose(1, 2)  # [N, HW, C], without a copy on a GPU: channels are last in memory
        query, key, value = self._split(self.places(places), 3)
        label_key, label_value = self._split(label[:, None].to(key.dtype), 2)
        return query, torch.cat([key, label_key], dim=2), torch.cat([value, label_value], dim=2)

    def _tokens_in_place(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same without concatenating, which would take a fifteenth of the network's time."""
        from anofpdm.network.fast.fused_norm import norm_tokens

        tokens = norm_tokens(x, self.norm.weight, self.norm.bias, groups=self.norm.num_groups)  # [N, HW + 1, C]
        projected = self.places(tokens)
        projected[:, -1, x.shape[1] :] = label  # key and value; its query is not used
        query, key, value = self._split(projected, 3)
        return query[:, :, :-1], key, value

    def _split(self, x: Tensor, parts: int) -> list[Tensor]:
        """[N, L, parts * C] -> parts of [N, heads, L, C / heads]."""
        n, length, channels = x.shape
        split = x.view(n, length, parts, self.heads, channels // parts // self.heads)
        return [part.squeeze(2).transpose(1, 2) for part in split.split(1, dim=2)]


class ScaledNorm(nn.Module):
    """Group norm, optional scale and shift, SiLU, dropout."""

    def __init__(self, channels: int, dropout: float = 0.0):
        super().__init__()
        self.norm = nn.GroupNorm(num_groups(channels), channels)
        self.dropout, self.fused = dropout, True

    def forward(self, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """x [N, C, H, W]; scale and shift [N, C]."""
        active = apply_norm(x, self.norm, scale, shift, activate=True, fused=self.fused)
        return F.dropout(active, self.dropout, self.training)


def modulate(x: Tensor, scale: Tensor | None, shift: Tensor | None) -> Tensor:
    if scale is None or shift is None:
        return x
    return x * (1 + scale[:, :, None, None]) + shift[:, :, None, None]


def apply_norm(
    x: Tensor,
    norm: nn.GroupNorm,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    *,
    activate: bool,
    fused: bool,
) -> Tensor:
    """Fused, on a GPU with Triton: by kernels, which keep channels last in memory. Otherwise by torch."""
    if x.is_cuda and fused and has_triton():
        from anofpdm.network.fast.fused_norm import norm_silu

        groups = norm.num_groups
        return norm_silu(x, norm.weight, norm.bias, groups=groups, scale=scale, shift=shift, activate=activate)
    plain = modulate(norm(x), scale, shift)
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


def repeat(x: Tensor, count: int) -> Tensor:
    """[N, C, H, W] -> [count, C, H, W]."""
    return x if len(x) == count else torch.cat([x] * (count // len(x)))  # which keeps channels last in memory


def upsample(x: Tensor) -> Tensor:
    """Nearest-neighbour, by 2. Same as F.interpolate, which autocast would run in float32."""
    pixels = x.permute(0, 2, 3, 1)  # [N, H, W, C]
    if x.is_cuda and pixels.is_contiguous() and x.shape[1] * x.element_size() % 16 == 0 and not torch.is_grad_enabled():
        # Sixteen bytes are copied at a time; such a view has no gradient.
        return _repeat(pixels.view(torch.complex128)).view(x.dtype).permute(0, 3, 1, 2)
    return _repeat(pixels).permute(0, 3, 1, 2)


def _repeat(pixels: Tensor) -> Tensor:
    """[N, H, W, C] -> [N, 2 * H, 2 * W, C]."""
    n, height, width, channels = pixels.shape
    wide = pixels[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return wide.reshape(n, 2 * height, 2 * width, channels)
