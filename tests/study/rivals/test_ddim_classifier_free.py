import numpy as np
import pytest
import torch

from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.forward_process import slice_noise
from anofpdm.study.rivals.ddim import decode, encode, levels_up_to
from anofpdm.study.rivals.ddim_classifier_free import reconstruct
from tests.method.worlds import Elementwise, TwoGaussians, alpha_bars, some_slices

HEALTHY_MEAN, NULL_MEAN, VARIANCE = -0.3, 0.2, 0.3
WORLD = TwoGaussians(HEALTHY_MEAN, NULL_MEAN, VARIANCE)


def labelled(world, label):
    return lambda x, t: world(x, t, torch.full((len(x),), label))


@pytest.mark.parametrize("world", [WORLD, Elementwise()], ids=["gaussians", "elementwise"])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize(("strength", "label"), [(0.0, HEALTHY), (-1.0, NULL)])
def test_strengths_0_and_minus_1_use_one_label_only(world, clamp, strength, label):
    x0, levels = some_slices(), levels_up_to(450, 30)
    noise = slice_noise(x0, [1, 2])()
    got = reconstruct(world, x0, levels=levels, strength=strength, noise=noise, clamp=clamp)
    x = encode(labelled(world, NULL), x0, levels, noise, clamp=clamp)
    labels = (label, HEALTHY + NULL - label)
    expected, other = (decode(labelled(world, name), x, levels, clamp=clamp) for name in labels)
    torch.testing.assert_close(got, expected)
    assert (got - other).abs().max() > 0.05


@pytest.mark.parametrize("top", [200, 450, 999])
@pytest.mark.parametrize("strength", [0.0, 1.1, 3.0])
def test_guided_shift_between_two_gaussians(top, strength):
    """Guiding between Gaussians of one variance is decoding with a Gaussian further on: m_w = (1 + w) m_h - w m_0."""
    x0, a = some_slices(), alpha_bars()[top]
    scale = np.sqrt((a * VARIANCE + 1 - a) / VARIANCE)
    moved = (1 + strength) * (HEALTHY_MEAN - NULL_MEAN) * (1 - np.sqrt(a) / scale)
    errors = []
    for count in (30, 1000):
        levels = levels_up_to(top, count)
        got = reconstruct(WORLD, x0, levels=levels, strength=strength, noise=0 * x0, clamp=False)
        errors.append((got - (x0 + moved)).abs().max())
    assert errors[1] < errors[0] / 5
    assert errors[1] < 0.01 * (1 + strength)
