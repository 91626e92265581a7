"""How weights are stored: in full or half precision, or in 8 bits with one scale per output channel."""

from collections.abc import Mapping

import torch
from torch import Tensor

from anofpdm.choices import WeightFormat

SCALE = "::scale"  # suffix of the scales of an 8-bit tensor
MIN_SIZE = 4096  # smaller tensors stay in half precision
LEVELS = 127


def store(weights: Mapping[str, Tensor], stored: WeightFormat) -> dict[str, Tensor]:
    """The tensors to save. Integers stay as they are."""
    if stored is WeightFormat.FLOAT32:
        return dict(weights)
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not weight.is_floating_point():
            tensors[name] = weight
        elif stored is WeightFormat.INT8 and weight.ndim > 1 and weight.numel() >= MIN_SIZE:
            scale = weight.float().flatten(1).abs().amax(dim=1).clamp(min=1e-12) / LEVELS  # [out]
            by_channel = scale.view(-1, *[1] * (weight.ndim - 1))
            tensors[name] = (weight.float() / by_channel).round().to(torch.int8)
            tensors[name + SCALE] = scale
        else:
            tensors[name] = weight.half()
    return tensors


def restore(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights; those of 8 bits in float32."""
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith(SCALE):
            continue
        scale = tensors.get(name + SCALE)
        if scale is not None:
            if tensor.dtype != torch.int8 or scale.shape != tensor.shape[:1]:
                raise ValueError(f"8-bit weights {name} of shape {tuple(tensor.shape)} do not fit their scales")
            tensor = tensor.float() * scale.view(-1, *[1] * (tensor.ndim - 1))
        weights[name] = tensor
    return weights
