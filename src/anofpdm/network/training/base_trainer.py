"""What the trainers of the diffusion model and of the student share: AdamW, the moving average of the weights, CUDA
graphs."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anofpdm.network.fast.cuda_graph import CudaGraph
from anofpdm.util.memory import unless_out_of_memory

RECORD_AFTER = 3  # steps, during which libraries choose their kernels


class BaseTrainer:
    """Subclasses define `compute_step`. On a GPU AdamW is one kernel, and a step is recorded as a CUDA graph, which
    reads the learning rate from a tensor: kernels are so short that Python would take longer to start them."""

    def __init__(self, network: nn.Module, learning_rate: float, highest_decay: float, weight_decay: float = 0.0):
        self.network, self.highest_decay = network.train(), highest_decay
        self.average = copy.deepcopy(network).requires_grad_(False).eval()
        parameters = list(network.parameters())
        device = parameters[0].device
        on_gpu = device.type == "cuda"
        rate = torch.tensor(learning_rate, device=device) if on_gpu else learning_rate
        self.optimiser = torch.optim.AdamW(parameters, rate, weight_decay=weight_decay, fused=on_gpu, capturable=on_gpu)
        self.uses_graph = on_gpu
        self.graph: CudaGraph | None = None
        self.eager_steps = 0

    def compute_step(self, *inputs: Tensor) -> Tensor:
        """Change the weights; return the loss."""
        raise NotImplementedError

    def compute_eagerly(self, inputs: Sequence[Tensor]) -> Tensor:
        return self.compute_step(*inputs)

    def optimise(self, inputs: Sequence[Tensor], rate: float, step: int) -> Tensor:
        """One step; returns the loss."""
        group = self.optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
        if self.uses_graph and self.graph is None and self.eager_steps == RECORD_AFTER:
            # A graph keeps its memory; where that is too much, training works without one.
            self.graph = unless_out_of_memory(lambda: CudaGraph(self.compute_step, inputs))
        if self.graph is not None:
            loss = self.graph(*inputs).clone()
        else:
            loss = self.compute_eagerly(inputs)
            self.eager_steps += 1
        self._update_average(step)
        return loss

    @torch.no_grad()
    def _update_average(self, step: int) -> None:
        """With a lower decay in the first steps, so that short runs are usable."""
        decay = min(self.highest_decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.network.parameters()), 1 - decay)
