import numpy as np
import pytest
import torch

from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.forward_process import slice_noise
from anofpdm.network.predictor import load_network
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.rivals.ddim import decode, encode, guide, levels_up_to
from anofpdm.study.rivals.ddim_classifier import reconstruct
from anofpdm.study.rivals.guide import load_guide
from anofpdm.study.rivals.noised_classifier import NoisedClassifier
from tests.method.worlds import alpha_bars

SCHEDULE, BARS = NoiseSchedule.linear(), alpha_bars()
CPU = torch.device("cpu")


class HealthyOrNot:
    """Half of all slices are N(healthy mean, variance) at every pixel, the others N(unhealthy mean, variance)."""

    means, variance = {HEALTHY: -0.4, UNHEALTHY: 0.5}, 0.04

    def noise(self, x, t, label):
        """Exact, for one label."""
        a = BARS[t]
        return np.sqrt(1 - a) * (x - np.sqrt(a) * self.means[label]) / (a * self.variance + 1 - a)

    def log_shares(self, x, t):
        """log p(label | x_t), [N, 2]: the exact classifier."""
        a = BARS[t]
        squares = [(x - np.sqrt(a) * self.means[label]).square().flatten(1).sum(1) for label in (HEALTHY, UNHEALTHY)]
        return (-torch.stack(squares, 1) / (2 * (a * self.variance + 1 - a))).log_softmax(1)

    def __call__(self, x, t):
        """Exact, without a label."""
        shares = self.log_shares(x, t).exp()[:, :, None, None, None]
        return shares[:, 0] * self.noise(x, t, HEALTHY) + shares[:, 1] * self.noise(x, t, UNHEALTHY)

    @torch.enable_grad()
    def healthy_gradient(self, x, t):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.log_shares(x, t)[:, HEALTHY].sum(), x)[0]

    def draw(self, label, n, seed=0):
        generator = torch.Generator().manual_seed(seed)
        standard = torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float64)
        return self.means[label] + np.sqrt(self.variance) * standard


WORLD = HealthyOrNot()


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("invert", [True, False])
@pytest.mark.parametrize("top", [200, 999])
def test_exact_classifier_at_scale_1_equals_the_healthy_model(top, invert, clamp):
    """Bayes: the score of healthy slices is the score of all plus the gradient of log p(healthy | x)."""
    x0, levels = torch.cat([WORLD.draw(HEALTHY, 2), WORLD.draw(UNHEALTHY, 2)]), levels_up_to(top, 100)
    noise = slice_noise(x0, range(4))()
    x = encode(WORLD, x0, levels, noise, clamp=clamp) if invert else SCHEDULE.add_noise(x0, top, noise)
    expected = decode(lambda x, t: WORLD.noise(x, t, HEALTHY), x, levels, clamp=clamp)
    options = {"levels": levels, "noise": noise, "invert": invert, "clamp": clamp}
    unguided, guided = (reconstruct(WORLD, WORLD.healthy_gradient, x0, scale=scale, **options) for scale in (0.0, 1.0))
    torch.testing.assert_close(guided, expected, rtol=1e-7, atol=1e-8)
    assert (unguided - expected).abs().max() > 0.05


def test_guidance_is_proportional_to_the_scale():
    """eps - sqrt(1 - a) s g."""
    x, t = WORLD.draw(HEALTHY, 2), 300
    guided = guide(WORLD, lambda x, _t: torch.full_like(x, 0.25), scale=2.0)
    torch.testing.assert_close(guided(x, t), WORLD(x, t) - 0.5 * np.sqrt(1 - BARS[t]))


def test_gradient_of_a_trained_classifier_is_that_of_log_p_healthy(made):
    x = torch.randn(3, 2, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # as the methods request it
        gradient = load_guide(made / "classifier", CPU).gradient(x, 300)
    assert not gradient.requires_grad
    network, _, _ = load_network(made / "classifier", NoisedClassifier, "classifier", "gaussian")
    network, way = network.eval(), torch.randn(x.shape, generator=torch.Generator().manual_seed(2))

    def log_healthy(step):
        with torch.no_grad():
            return network(x + step * way, torch.full((3,), 300)).double().log_softmax(1)[:, HEALTHY]

    slope = (log_healthy(0.05) - log_healthy(-0.05)) / 0.1
    assert slope.abs().min() > 0
    ours = (gradient * way).sum((1, 2, 3)).double()
    torch.testing.assert_close(ours, slope, rtol=0.02, atol=0.02 * slope.abs().max().item())
