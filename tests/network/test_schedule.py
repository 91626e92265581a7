import math

import pytest
import torch

from anofpdm.errors import ConfigError
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.training.sample_pictures import sample


@pytest.fixture
def schedule():
    return NoiseSchedule.linear()


def test_the_papers_schedule(schedule):
    assert len(schedule) == 1000
    assert schedule.alpha_bar[0].item() == pytest.approx(0.9999)
    by_hand = 1.0
    for number in range(1000):
        by_hand *= 1 - (1e-4 + (0.02 - 1e-4) * number / 999)
    assert schedule.alpha_bar[-1].item() == pytest.approx(by_hand, rel=1e-9)


def test_noise_has_the_right_variance(schedule):
    x0 = torch.full((2, 1, 200, 200), 0.5)
    x = schedule.add_noise(
        x0, torch.tensor([100, 700]), torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    )
    for number, t in enumerate((100, 700)):
        assert x[number].mean().item() == pytest.approx(0.5 * schedule.alpha_bar[t].sqrt().item(), abs=0.02)
        assert x[number].var().item() == pytest.approx(1 - schedule.alpha_bar[t].item(), rel=0.02)


def test_one_level_for_all_or_one_for_each(schedule):
    x0, noise = torch.randn(3, 2, 4, 4), torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(schedule.add_noise(x0, 400, noise), schedule.add_noise(x0, torch.full((3,), 400), noise))


def test_removing_noise_inverts_adding_it(schedule):
    x0, noise = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    for t in (0, 300, 999):
        x = schedule.add_noise(x0, t, noise)
        torch.testing.assert_close(schedule.clean(x, noise, t), x0, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(schedule.noise_in(x, x0, t), noise, rtol=1e-3, atol=1e-3)


def test_a_ddim_step_keeps_slice_and_noise(schedule):
    """Given the true slice, a step to a level equals adding the same noise at that level, up or down."""
    x0, noise = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
    x = schedule.add_noise(x0, 500, noise)
    for t_next in (20, 480, 700):
        torch.testing.assert_close(schedule.ddim_step(x, x0, 500, t_next), schedule.add_noise(x0, t_next, noise))


@pytest.mark.parametrize("t", [1, 2, 300, 999])
def test_the_posterior_follows_from_bayes(schedule, t):
    """x_{t-1} is determined by the clean slice and by x_t, each with its own precision."""
    betas = [1e-4 + (0.02 - 1e-4) * number / 999 for number in range(1000)]
    below = math.prod(1 - beta for beta in betas[:t])
    beta, generator = betas[t], torch.Generator().manual_seed(0)
    x, clean = (torch.randn(2, 1, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    precision = (1 - beta) / beta + 1 / (1 - below)
    expected = (math.sqrt(1 - beta) / beta * x + math.sqrt(below) / (1 - below) * clean) / precision
    mean, deviation = schedule.posterior(x, clean, t)
    torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)
    assert deviation == pytest.approx(precision**-0.5, rel=1e-9)


def test_the_posterior_at_level_0_is_the_slice(schedule):
    x, clean = torch.randn(2, 1, 4, 4), torch.randn(2, 1, 4, 4)
    mean, deviation = schedule.posterior(x, clean, 0)
    torch.testing.assert_close(mean, clean)
    assert deviation == 0


def test_the_posterior_inverts_a_step_of_noise(schedule):
    """Noise at level t, then a sample from the posterior, equals noise at level t - 1."""
    t, x0, generator = 500, torch.full((1, 1, 400, 400), 0.7), torch.Generator().manual_seed(0)
    x, drawn = (torch.randn(x0.shape, generator=generator) for _ in range(2))
    mean, deviation = schedule.posterior(schedule.add_noise(x0, t, x), x0, t)
    signal, spread = schedule.signal_and_noise(t - 1, x0)
    below = mean + deviation * drawn
    assert below.mean().item() == pytest.approx(0.7 * signal, abs=0.01)
    assert below.std().item() == pytest.approx(spread, rel=0.005)


def test_sampling_a_gaussian_gives_that_gaussian(schedule):
    """The exact denoiser of N(mean, deviation^2) maps pure noise to that distribution."""
    mean, deviation = 0.3, 0.2

    def predict(x, t):
        a = schedule.alpha_bar[t].to(x)
        clean = mean + a.sqrt() * deviation**2 / (a * deviation**2 + 1 - a) * (x - a.sqrt() * mean)
        return schedule.noise_in(x, clean, t)

    noise = torch.randn(64, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    drawn = sample(predict, noise, schedule=schedule, steps=200)
    assert drawn.mean().item() == pytest.approx(mean, abs=0.01)
    assert drawn.std().item() == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(("total", "expected"), [(1000, [999, 749, 499, 249]), (5, [4, 3, 2, 1, 0])])
def test_levels_of_sampling_are_evenly_spaced_from_the_last(total, expected):
    levels = []

    def predict(x, t):
        levels.append(t)
        return x

    sample(predict, torch.zeros(1, 1, 4, 4), schedule=NoiseSchedule.linear(total), steps=len(expected))
    assert levels == expected


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"first": 0.0}, {"first": 0.03}, {"last": 1.0}])
def test_impossible_schedules(wrong):
    with pytest.raises(ConfigError):
        NoiseSchedule.linear(**wrong)
