"""AdamW, its learning rate, and the moving average of the weights. On a GPU AdamW is one kernel that a CUDA graph can
record; the graph reads the rate from a tensor."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def adamw(parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float = 0.0) -> torch.optim.AdamW:
    parameters = list(parameters)
    device = parameters[0].device
    on_gpu = device.type == "cuda"
    rate = torch.tensor(learning_rate, device=device) if on_gpu else learning_rate
    return torch.optim.AdamW(parameters, rate, weight_decay=weight_decay, fused=on_gpu, capturable=on_gpu)


def set_learning_rate(optimiser: torch.optim.AdamW, rate: float) -> None:
    group = optimiser.param_groups[0]
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, highest_decay: float, step: int) -> None:
    """With a lower decay in the first steps, so that short runs are usable."""
    decay = min(highest_decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
