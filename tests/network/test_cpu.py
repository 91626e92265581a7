"""The choice of a library for gradients on a CPU."""

import platform

import pytest
import torch

from anofpdm.network.fast.cpu import fast_gradients

CPU = torch.device("cpu")


@pytest.mark.parametrize(("machine", "onednn"), [("aarch64", False), ("arm64", False), ("x86_64", True)])
def test_gradients_are_the_same_and_the_setting_is_restored(machine, onednn, monkeypatch, recwarn):
    convolution = torch.nn.Conv2d(4, 6, 3, padding=1)
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    convolution(x).square().sum().backward()
    expected = convolution.weight.grad.clone()
    before = torch.backends.mkldnn.enabled
    monkeypatch.setattr(platform, "machine", lambda: machine)
    convolution.weight.grad = None
    loss = convolution(x).square().sum()
    with fast_gradients(CPU):
        assert torch.backends.mkldnn.enabled is (onednn and before)
        loss.backward()
    assert torch.backends.mkldnn.enabled is before
    torch.testing.assert_close(convolution.weight.grad, expected)
    assert not recwarn.list
