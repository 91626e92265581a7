"""AdamW against torch's own."""

import pytest
import torch

from anofpdm.network.training.optimiser import AdamW


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_steps_are_those_of_torch(weight_decay):
    torch.manual_seed(0)
    weights = [torch.randn(3, 4), torch.randn(5), torch.randn(2)]
    ours, theirs = ([torch.nn.Parameter(weight.clone()) for weight in weights] for _ in range(2))
    own = AdamW(ours, 1e-2, weight_decay)
    reference = torch.optim.AdamW(theirs, 1e-2, weight_decay=weight_decay)
    for step in range(5):
        for one, other in zip(ours[:2], theirs[:2], strict=True):  # the last parameter has no gradient
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        own.learning_rate = reference.param_groups[0]["lr"] = 1e-2 / (1 + step)
        own.step()
        reference.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    own.zero_grad()
    assert all(parameter.grad is None for parameter in ours)
