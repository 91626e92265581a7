import numpy as np
import pytest
import torch

from anofpdm.study.rivals.anoddpm import gaussian_draws, reconstruct, simplex_draws
from anofpdm.study.rivals.simplex import random_permutations, simplex_noise
from tests.method.worlds import TwoGaussians, alpha_bars, some_slices, unlabelled

MEAN, VARIANCE = 0.3, 0.09


GAUSSIAN = unlabelled(TwoGaussians(MEAN, MEAN, VARIANCE))


def moments(level):
    """Of what comes back from x0: (slope, offset, variance), its mean being slope * x0 + offset.

    Each step is linear in x, so the moments follow by hand. The step itself by Bayes: what is known of x_{t-1} is
    x_t with precision alpha / beta and the slice behind it with precision 1 / (1 - alpha_bar_{t-1}).
    """
    bars = alpha_bars()
    slope, offset, variance = np.sqrt(bars[level]), 0.0, 1 - bars[level]
    for t in range(level, -1, -1):
        a, below = bars[t], bars[t - 1] if t else 1.0
        gain = np.sqrt(a) * VARIANCE / (a * VARIANCE + 1 - a)  # E[x0 | x] = MEAN + gain (x - sqrt(a) MEAN)
        of_x, of_clean, left = 0.0, 1.0, 0.0
        if t:
            alpha, known = a / below, 1 - below
            left = 1 / (alpha / (1 - alpha) + 1 / known)
            of_x, of_clean = np.sqrt(alpha) / (1 - alpha) * left, np.sqrt(below) / known * left
        total = of_x + of_clean * gain
        offset = total * offset + of_clean * MEAN * (1 - gain * np.sqrt(a))
        slope, variance = total * slope, total**2 * variance + left
    return slope, offset, variance


@pytest.mark.parametrize("level", [0, 1, 50, 300])
def test_without_noise_the_result_is_the_expectation(level):
    x0 = some_slices()
    slope, offset, _ = moments(level)
    result = reconstruct(GAUSSIAN, x0, level, lambda _t: 0 * x0, clamp=False)
    torch.testing.assert_close(result, slope * x0 + offset, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("level", "x0"), [(60, 0.9), (250, -0.5)])
def test_variance_of_samples(level, x0):
    start = torch.full((1, 1, 250, 250), x0, dtype=torch.float64)
    samples = reconstruct(GAUSSIAN, start, level, gaussian_draws(start, [0]), clamp=False)
    slope, offset, variance = moments(level)
    assert samples.mean().item() == pytest.approx(slope * x0 + offset, abs=0.004)
    assert samples.var().item() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize("draws", [gaussian_draws, simplex_draws])
def test_noise_differs_between_slices_channels_and_samples(draws):
    x0 = some_slices(2, 2, 8)
    draw = draws(x0, [1, 2])
    fields = torch.cat([draw(40), draw(40)]).flatten(0, 1)  # [8, H, W]
    assert fields.dtype == x0.dtype
    assert len(fields.unique(dim=0)) == 8
    again = draws(x0, [1, 2])
    assert torch.equal(torch.cat([again(40), again(40)]).flatten(0, 1), fields)


def test_simplex_noise_is_the_plane_at_its_level():
    x0 = some_slices(1, 2, 8)
    draw, generator = simplex_draws(x0, [7]), torch.Generator().manual_seed(7)
    for t in (200, 30):
        expected = simplex_noise(random_permutations(2, generator), t, 8, 8)
        torch.testing.assert_close(draw(t)[0].float(), expected)
