"""Winograd convolutions against direct ones in double precision."""

import pytest
import torch
from torch import nn

from anofpdm.network.fast.winograd import WinogradConvolution, suits, use_winograd


@pytest.mark.parametrize(("channels", "out", "height", "width"), [(64, 32, 8, 12), (128, 64, 4, 4), (3, 5, 16, 8)])
def test_it_computes_the_convolution(channels, out, height, width):
    torch.manual_seed(0)
    convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
    x = torch.randn(3, channels, height, width)
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            found = WinogradConvolution(convolution)(x.contiguous(memory_format=layout))
            expected = nn.functional.conv2d(x.double(), convolution.weight.double(), padding=1)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-5)


def test_sides_that_tiles_do_not_fit_are_convolved_directly():
    convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    x = torch.randn(1, 4, 6, 8)
    torch.testing.assert_close(WinogradConvolution(convolution)(x), convolution(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "changed", [{"kernel_size": 1, "padding": 0}, {"stride": 2}, {"bias": True}, {"groups": 2}, {"padding": 0}]
)
def test_other_convolutions_stay(changed):
    options = {"kernel_size": 3, "padding": 1, "bias": False}
    assert suits(nn.Conv2d(64, 64, **options))
    assert not suits(nn.Conv2d(64, 64, **(options | changed)))
    assert not suits(nn.Conv2d(32, 64, **options))


def test_a_network_keeps_its_results():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 64, 3, padding=1), nn.SiLU(), nn.Conv2d(64, 64, 3, padding=1, bias=False))
    x = torch.randn(2, 2, 16, 16)
    with torch.no_grad():
        expected = network(x)
        use_winograd(network)
        assert [type(layer) for layer in network] == [nn.Conv2d, nn.SiLU, WinogradConvolution]
        torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-5)
