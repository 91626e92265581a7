"""AdamW, without the import of torch's compiler that torch.optim.AdamW makes: it takes 1.5 to 5 seconds."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

BETAS, EPSILON = (0.9, 0.999), 1e-8


class AdamW:
    """The same numbers as torch.optim.AdamW. On a GPU in one kernel, which can be recorded as a CUDA graph."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float = 0.0):
        self.parameters, self.weight_decay = list(parameters), weight_decay
        self._on_gpu = self.parameters[0].is_cuda
        self._rate = torch.tensor(learning_rate, device=self.parameters[0].device)  # a graph reads the tensor
        self.first_moments, self.second_moments = (
            [torch.zeros_like(parameter) for parameter in self.parameters] for _ in range(2)
        )
        self.set_steps(0)
        self.learning_rate = learning_rate

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = value
        self._rate.fill_(value)

    def set_steps(self, count: int) -> None:
        """So many steps have been made."""
        self._steps = [torch.tensor(float(count), device=self._rate.device) for _ in self.parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Parameters without a gradient stay as they are."""
        used = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]

        def pick(tensors: list[Tensor]) -> list[Tensor]:
            return [tensors[number] for number in used]

        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        adamw(
            [self.parameters[number] for number in used],
            gradients,
            pick(self.first_moments),
            pick(self.second_moments),
            [],
            pick(self._steps),
            foreach=False,
            fused=self._on_gpu,
            capturable=self._on_gpu,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self._rate if self._on_gpu else self._learning_rate,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )
