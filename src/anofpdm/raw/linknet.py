"""The network of deepbet, a LinkNet in three dimensions, computed from its weights.

It is the function that its TorchScript file computes, to rounding. On ARM, torch's own 3D convolutions take ten times
as long, and elsewhere they may need several GB: here, a 3D convolution is a 2D one over a few planes at a time.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
PLANES = 16  # output planes at a time; bounds the memory


def predict_brain(weights: Weights, x: Tensor) -> Tensor:
    """x [1, 1, D, H, W] -> probability [D, H, W] of brain."""
    x = F.max_pool3d(_normalised(_conv(x, weights["init.0.weight"], stride=2)).relu_(), 3, 2, 1)
    skips = []
    for level in range(4):
        skips.append(x)
        x = _block(weights, f"down{level}.block1", x, stride=1 if level == 0 else 2)
        x = _block(weights, f"down{level}.block2", x)
    # down0 keeps the size of its input, which is what the last skip connection adds.
    for level, skip in enumerate(reversed(skips)):
        x = _up(weights, f"up{level}", x, stride=1 if level == 3 else 2) + skip
    x = F.conv_transpose3d(x, weights["tp_conv1.0.weight"], weights["tp_conv1.0.bias"], 2, 1, 1)
    x = _conv(_normalised(x).relu_(), weights["conv.0.weight"], weights["conv.0.bias"])
    return _last_layer(_normalised(x).relu_(), weights["tp_conv2.weight"], weights["tp_conv2.bias"])


def _block(weights: Weights, name: str, x: Tensor, stride: int = 1) -> Tensor:
    """Two convolutions beside a shortcut."""
    out = _normalised(_conv(x, weights[f"{name}.double_conv.0.weight"], stride=stride)).relu_()
    out = _normalised(_conv(out, weights[f"{name}.double_conv.3.weight"]))
    shortcut = weights.get(f"{name}.downsample.0.weight")
    if shortcut is not None:
        x = _normalised(F.conv3d(x, shortcut, stride=stride))
    return out.add_(x).relu_()


def _up(weights: Weights, name: str, x: Tensor, stride: int) -> Tensor:
    x = _normalised(F.conv3d(x, weights[f"{name}.conv1.0.weight"])).relu_()
    x = F.conv_transpose3d(x, weights[f"{name}.tp_conv.0.weight"], None, stride, 1, stride - 1)
    return _normalised(F.conv3d(_normalised(x).relu_(), weights[f"{name}.conv2.0.weight"])).relu_()


def _normalised(x: Tensor) -> Tensor:
    return F.instance_norm(x)


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int = 1) -> Tensor:
    """x [1, C, D, H, W], weight [O, C, k, k, k] -> [1, O, D', H', W'], padded by k // 2.

    The k planes that an output plane depends on become channels of a 2D convolution.
    """
    size = weight.shape[2]
    padded = F.pad(x[0], (0, 0, 0, 0, size // 2, size // 2))
    neighbours = padded.unfold(1, size, stride).permute(1, 4, 0, 2, 3)  # [D', k, C, H, W], a view
    flat = weight.permute(0, 2, 1, 3, 4).flatten(1, 2)  # [O, k * C, k, k]
    parts = [F.conv2d(part.flatten(1, 2), flat, bias, stride, size // 2) for part in neighbours.split(PLANES)]
    return torch.cat(parts).transpose(0, 1)[None]


def _last_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Transposed convolution to [1, 2, 2 D, 2 H, 2 W], then the softmax's second channel, a few planes at a time."""
    parts = [F.conv_transpose3d(part, weight, bias, 2) for part in x.split(PLANES, dim=2)]
    return torch.cat([(part[0, 1] - part[0, 0]).sigmoid_() for part in parts])
