from functools import partial

import pytest
import torch
import torch.nn.functional as F

from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.forward_process import slice_noise
from anofpdm.network import predictor
from anofpdm.network.config import UNetConfig
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.unet import UNet
from anofpdm.study.rivals import cg_cdm, ddim_classifier
from anofpdm.study.rivals.cg_cdm import HEALTHY_SHARE, paths
from anofpdm.study.rivals.ddim import decode, levels_up_to
from tests.method.worlds import some_slices

SCHEDULE = NoiseSchedule.linear()
LEVELS = levels_up_to(400, 10)
LEANS = torch.tensor([-0.7, 0.4, 0.1])  # of each label


def linear(x, t, labels):
    """Noise that is linear in x, and in the shares of the labels."""
    shares = labels if labels.ndim == 2 else F.one_hot(labels, 3)
    lean = (shares.to(x) * LEANS.to(x)).sum(1)[:, None, None, None]
    return 0.6 * x + lean * (1 + t / 500)


def no_pull(x, _t):
    return torch.zeros_like(x)


def wavy_pull(x, t):
    return torch.sin(2 * x + t / 100)


def decoded(x0, predict=linear, gradient=wavy_pull, scale=0.0, clamp=False, seeds=(1, 2)):
    noise = slice_noise(x0, seeds)()
    return paths(predict, gradient, x0, levels=LEVELS, scale=scale, noise=noise, clamp=clamp)


def test_difference_is_the_gradient_with_respect_to_the_label(monkeypatch):
    """Of a network linear in the label: the share of healthy times what all the way to healthy would make."""
    x0 = some_slices()
    x = SCHEDULE.add_noise(x0, 400, slice_noise(x0, (1, 2))())
    ends = [
        decode(partial(linear, labels=torch.full((2,), label)), x, LEVELS, clamp=False)
        for label in (UNHEALTHY, HEALTHY)
    ]
    for share in (HEALTHY_SHARE, 0.2, 0.0):
        monkeypatch.setattr(cg_cdm, "HEALTHY_SHARE", share)
        unhealthy, slightly = decoded(x0)
        torch.testing.assert_close(unhealthy, ends[0])
        torch.testing.assert_close(slightly - unhealthy, share * (ends[1] - ends[0]), rtol=1e-5, atol=1e-7)
    assert (ends[1] - ends[0]).abs().min() > 0.1


@pytest.mark.parametrize("clamp", [True, False])
def test_guidance_is_that_of_classifier_guided_decoding(monkeypatch, clamp):
    monkeypatch.setattr(cg_cdm, "HEALTHY_SHARE", 0.0)
    x0 = some_slices()
    expected = ddim_classifier.reconstruct(
        partial(linear, labels=torch.full((2,), UNHEALTHY)),
        wavy_pull,
        x0,
        levels=LEVELS,
        scale=10.0,
        noise=slice_noise(x0, (1, 2))(),
        invert=False,
        clamp=clamp,
    )
    torch.testing.assert_close(decoded(x0, scale=10.0, clamp=clamp)[1], expected, rtol=1e-6, atol=1e-7)


def test_recorded_network_receives_labels_and_shares(monkeypatch):
    """As on a GPU, where what is recorded for one shape of labels cannot be replayed for another."""

    class Recorded:
        def __init__(self, function, inputs, _pool=None):
            self.function, self.inputs = function, [tensor.clone() for tensor in inputs]

        def __call__(self, *inputs):
            for place, tensor in zip(self.inputs, inputs, strict=True):
                place.copy_(tensor)
            return self.function(*self.inputs)

    torch.manual_seed(0)
    network = UNet(UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,)))
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    predict, x0 = NoisePredictor(network, torch.device("cpu")), some_slices().float()
    plain = decoded(x0, predict, no_pull)
    monkeypatch.setattr(predictor, "CudaGraph", Recorded)
    predict._uses_graphs = True
    for got, wanted in zip(decoded(x0, predict, no_pull), plain, strict=True):
        torch.testing.assert_close(got, wanted)
    assert not torch.allclose(*plain)
