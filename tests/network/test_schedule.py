import math

import numpy as np
import pytest
import torch

from anofpdm.errors import ConfigError
from anofpdm.network.schedule import NoiseSchedule

SCHEDULE = NoiseSchedule.linear()
BARS = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000))  # the paper's


def test_the_papers_schedule():
    assert len(SCHEDULE) == 1000
    np.testing.assert_allclose(SCHEDULE.alpha_bar, BARS, rtol=1e-9)


def test_noise_has_the_right_variance():
    x0, levels = torch.full((2, 1, 200, 200), 0.5), (100, 700)
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    for x, bar in zip(SCHEDULE.add_noise(x0, torch.tensor(levels), noise), BARS[[*levels]], strict=True):
        assert x.mean().item() == pytest.approx(0.5 * math.sqrt(bar), abs=0.02)
        assert x.var().item() == pytest.approx(1 - bar, rel=0.02)


def test_removing_noise_inverts_adding_it_at_one_level_for_all_or_one_for_each():
    x0, noise = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    for t in (0, 300, 999):
        x = SCHEDULE.add_noise(x0, t, noise)
        torch.testing.assert_close(SCHEDULE.add_noise(x0, torch.full((2,), t), noise), x)
        torch.testing.assert_close(SCHEDULE.clean(x, noise, t), x0, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(SCHEDULE.noise_in(x, x0, t), noise, rtol=1e-3, atol=1e-3)


def test_a_ddim_step_keeps_slice_and_noise():
    """Given the true slice, a step to a level equals adding the same noise at that level, up or down."""
    x0, noise = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
    x = SCHEDULE.add_noise(x0, 500, noise)
    for t_next in (20, 480, 700):
        torch.testing.assert_close(SCHEDULE.ddim_step(x, x0, 500, t_next), SCHEDULE.add_noise(x0, t_next, noise))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"first": 0.0}, {"first": 0.03}, {"last": 1.0}])
def test_impossible_schedules(wrong):
    with pytest.raises(ConfigError):
        NoiseSchedule.linear(**wrong)
