"""Convolutions for CPUs against direct ones in double precision, and what differs between CPUs."""

import platform

import pytest
import torch
from torch import nn

from anofpdm.network.blocks import UpConvolution
from anofpdm.network.fast.cpu import fast_gradients
from anofpdm.network.fast.upsampled import UpsampledConvolution
from anofpdm.network.fast.winograd import WinogradConvolution


@pytest.mark.parametrize(("channels", "out", "height", "width"), [(64, 32, 8, 12), (3, 5, 16, 8), (4, 4, 6, 8)])
def test_winograd_computes_the_convolution(channels, out, height, width):
    """Directly where tiles of 4 x 4 do not fit."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
    x = torch.randn(3, channels, height, width)
    expected = nn.functional.conv2d(x.double(), convolution.weight.double(), padding=1)
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            ours = WinogradConvolution(convolution)(x.contiguous(memory_format=layout))
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=3e-5)


def test_an_upsampled_image_is_convolved_without_computing_it():
    plain, convolution = nn.Conv2d(6, 5, 3, padding=1, bias=False), UpConvolution(6, 5, 3, padding=1, bias=False)
    plain.load_state_dict(convolution.state_dict())
    x = torch.randn(2, 6, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain(nn.functional.interpolate(x, scale_factor=2))
        for ours in (convolution, UpsampledConvolution(convolution)):
            torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("machine", "onednn"), [("aarch64", False), ("arm64", False), ("x86_64", True)])
def test_gradients_are_the_same_and_the_setting_is_restored(machine, onednn, monkeypatch, recwarn):
    convolution, before = nn.Conv2d(4, 6, 3, padding=1), torch.backends.mkldnn.enabled
    x = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
    expected = torch.autograd.grad(convolution(x).square().sum(), convolution.weight)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    loss = convolution(x).square().sum()
    with fast_gradients(torch.device("cpu")):
        assert torch.backends.mkldnn.enabled is (onednn and before)
        gradient = torch.autograd.grad(loss, convolution.weight)
    assert torch.backends.mkldnn.enabled is before
    torch.testing.assert_close(gradient, expected)
    assert not recwarn.list
