import gc
import math
from typing import Any

import numpy as np
import pytest
import torch

from anofpdm.errors import ConfigError, MethodError
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method import NoiseSchedule, forward_evidence
from anofpdm.method.evidence import concatenate, spread_levels
from anofpdm.options import Signal
from tests.method.worlds import FIELDS, Elementwise, TwoGaussians, alpha_bars, literal, literal_agreement

SCHEDULE = NoiseSchedule.linear()
SIGNALS = [signal for signal in Signal if signal != Signal.AUTO]


def some_slices(n=3, channels=3, side=12, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(n, channels, side, side, generator=generator, dtype=dtype) * 2 - 1) * 0.8


@pytest.mark.parametrize("encoding", ["ddim", "ddpm"])
@pytest.mark.parametrize("signal", ["error", "gradient", "gradient-weighted", "gradient-above"])
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("levels", [[7], range(0, 600, 60), range(0, 40, 1), [3, 5, 200, 201, 900]])
def test_equals_the_formulas_written_out(encoding, signal, clamp, levels):
    x0, strengths, seeds, channels = some_slices(), [0.0, 2.0, 5.0, -1.0], [5, 6, 7], [0, 2]
    levels = list(levels)
    world = Elementwise()
    found = forward_evidence(
        world, x0, levels=levels, strengths=strengths, schedule=SCHEDULE, seeds=seeds, channels=channels,
        encoding=encoding, signal=signal, clamp=clamp,
    )  # fmt: skip
    expected = literal(world, x0, levels, strengths, seeds, channels, encoding, signal, clamp)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name).numpy(), expected[name], rtol=1e-5, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("encoding", ["ddim", "ddpm"])
def test_several_signals_of_one_pass_equal_those_of_a_pass_each(encoding):
    x0, levels, world, called = some_slices(), tuple(range(0, 600, 60)), Elementwise(), []

    def counting(x, t, labels):
        called.append(t)
        return world(x, t, labels)

    common = {
        "levels": levels, "strengths": [0.0, 2.0], "schedule": SCHEDULE, "seeds": [5, 6, 7], "channels": [0, 2],
        "encoding": encoding,
    }  # fmt: skip
    together = forward_evidence(counting, x0, signal=SIGNALS, **common)
    assert called == list(levels)
    for signal in SIGNALS:
        alone, shared = forward_evidence(world, x0, signal=signal, **common), together.with_signal(signal)
        assert shared.settings == alone.settings
        assert all(torch.equal(getattr(shared, name), getattr(alone, name)) for name in FIELDS)


@pytest.mark.parametrize("encoding", ["ddim", "ddpm"])
@pytest.mark.parametrize("levels", [(7,), (0,), tuple(range(0, 600, 60)), tuple(range(0, 600, 10))])
def test_agreement_is_two_parts_error_and_one_part_gradient(encoding, levels):
    x0, strengths, seeds, channels, world = some_slices(), [0.0, 5.0], [5, 6, 7], [0, 2], Elementwise()
    seen = []
    found = forward_evidence(
        world, x0, levels=levels, strengths=strengths, schedule=SCHEDULE, seeds=seeds, channels=channels,
        encoding=encoding, signal="agreement",
        on_level=lambda level, signal_map: seen.append((level.number, signal_map())),
    )  # fmt: skip
    expected = literal_agreement(world, x0, levels, strengths, seeds, channels, encoding, True)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name).numpy(), expected[name], rtol=1e-5, atol=1e-10, err_msg=name)
    assert found.settings.signal == "agreement"
    assert [number for number, _ in seen] == list(range(len(levels)))
    at_end = torch.stack([signal for _, signal in seen])[
        [levels.index(int(t)) for t in found.end_step[:, 0]], [0, 1, 2], 0
    ]
    torch.testing.assert_close(found.last_maps[:, 0], at_end)


@pytest.mark.parametrize(("peak", "end"), [(0, 0), (9, 540), (4, 240)])
def test_the_end_step_may_be_the_first_level_or_the_last(peak, end):
    levels = list(range(0, 600, 60))

    def leaning(x, t, labels):
        """Guidance that moves the estimate most at one level: e_h - e_0 such that g_t - u_t is as wanted."""
        a = alpha_bars()[t]
        wanted = 0.2 if t == levels[peak] else 0.1
        lean = wanted * math.sqrt(a) / math.sqrt(1 - a)
        return 0.0 * x + torch.where(labels == 0, lean, 0.0).to(x)[:, None, None, None]

    x0 = some_slices()
    settings: dict[str, Any] = {
        "levels": levels,
        "strengths": [0.0],
        "schedule": SCHEDULE,
        "seeds": [1, 2, 3],
        "clamp": False,
    }
    found = forward_evidence(leaning, x0, **settings)
    assert found.end_step.tolist() == [[end]] * 3
    expected = literal(leaning, x0, levels, [0.0], [1, 2, 3], [0, 1, 2], "ddim", "error", False)
    np.testing.assert_allclose(found.maps.numpy(), expected["maps"], rtol=1e-5)
    np.testing.assert_allclose(found.last_maps.numpy(), expected["last_maps"], rtol=1e-5)


def test_two_gaussians_have_closed_forms():
    """Between Gaussians of one variance, the estimates differ by (1 + w)(1 - gain sqrt(a))(difference of means)."""
    healthy_mean, null_mean, variance, w = -0.3, 0.1, 0.25, 3.0
    world = TwoGaussians(healthy_mean, null_mean, variance)
    levels, x0 = list(range(0, 1000, 100)), some_slices(2, 1, 8)
    found = forward_evidence(
        world, x0, levels=levels, strengths=[w], schedule=SCHEDULE, seeds=[3, 4], clamp=False, encoding="ddpm"
    )
    a = alpha_bars()[levels]
    shrink = (1 - a) / (a * variance + 1 - a)  # 1 - gain sqrt(a)
    moved = ((1 + w) * shrink * (healthy_mean - null_mean)) ** 2
    np.testing.assert_allclose(found.divergence[:, 0].numpy(), np.broadcast_to(moved, (2, 10)), rtol=1e-6)
    assert (found.end_step == levels[-1]).all()  # shrink grows with the noise
    # Noise is fresh at every level, so u_t and with it every curve and H follow from the draws alone.
    for number, seed in enumerate([3, 4]):
        generator = torch.Generator().manual_seed(seed)
        draws = [torch.randn(1, 8, 8, generator=generator).double() for _ in levels]
        x = [np.sqrt(s) * x0[number] + np.sqrt(1 - s) * draw for s, draw in zip(a, draws, strict=True)]
        u = [world.clean(x_t, t, 2) for x_t, t in zip(x, levels, strict=True)]
        g = [u_t + (1 + w) * s * (healthy_mean - null_mean) for u_t, s in zip(u, shrink, strict=True)]
        errors = [(g_t - x0[number]).square().numpy() for g_t in g]
        plain = [float((u_t - x0[number]).square().mean()) for u_t in u]
        curve = [float(error.mean()) for error in errors]
        np.testing.assert_allclose(found.mse_unguided[number].numpy(), plain, rtol=1e-6)
        np.testing.assert_allclose(found.mse_guided[number, 0].numpy(), curve, rtol=1e-6)
        np.testing.assert_allclose(found.maps[number, 0].numpy(), np.mean(errors, axis=0)[0], rtol=1e-6)
        cosine = np.dot(curve, plain) / np.linalg.norm(curve) / np.linalg.norm(plain)
        assert float(found.similarity[number, 0]) == pytest.approx(cosine, rel=1e-6)


def test_ddim_with_an_exact_denoiser_keeps_the_standardised_pixel():
    """The exact flow of a Gaussian maps quantiles to quantiles: (x_t - mean_t) / deviation_t stays what it was."""
    variance, mean = 0.09, 0.2
    world = TwoGaussians(mean, mean, variance)
    x0 = some_slices(1, 1, 8) * 0.3
    levels, seen = list(range(0, 1000, 1)), []
    forward_evidence(
        world, x0, levels=levels, strengths=[1.0], schedule=SCHEDULE, seeds=[0], clamp=False,
        on_level=lambda level, _: seen.append((level.t, level.x)),
    )  # fmt: skip
    bars = alpha_bars()
    standard = [(x - math.sqrt(bars[t]) * mean) / math.sqrt(bars[t] * variance + 1 - bars[t]) for t, x in seen]
    torch.testing.assert_close(standard[-1], standard[0], rtol=0.02, atol=0.02)


def test_strength_minus_one_is_no_guidance_and_equal_predictions_do_not_diverge():
    arguments = {"levels": [0, 300], "schedule": SCHEDULE, "seeds": [1, 2, 3]}
    found = forward_evidence(Elementwise(), some_slices(), strengths=[-1.0], **arguments)
    torch.testing.assert_close(found.mse_guided[:, 0], found.mse_unguided)
    assert found.divergence.abs().max() < 1e-20
    still = forward_evidence(Elementwise(difference=0.0), some_slices(), strengths=[7.0], **arguments)
    assert still.divergence.abs().max() == 0
    assert (still.end_step == 0).all()


@pytest.mark.parametrize("encoding", ["ddim", "ddpm"])
def test_with_an_elementwise_denoiser_batches_and_order_change_no_bit(encoding):
    x0, seeds = some_slices(9, 2, 48, dtype=torch.float32), list(range(20, 29))
    settings: dict[str, Any] = {
        "levels": range(0, 600, 40), "strengths": [0.0, 1.0, 4.0], "schedule": SCHEDULE, "encoding": encoding,
    }  # fmt: skip
    whole = forward_evidence(Elementwise(), x0, seeds=seeds, **settings)
    alone = concatenate([forward_evidence(Elementwise(), x0[[i]], seeds=[seeds[i]], **settings) for i in range(9)])
    order = [8, 0, 3, 5, 1, 2, 7, 4, 6]
    shuffled = forward_evidence(Elementwise(), x0[order], seeds=[seeds[i] for i in order], **settings)
    one_strength = forward_evidence(Elementwise(), x0, seeds=seeds, **{**settings, "strengths": [4.0]})
    for name in FIELDS:
        assert torch.equal(getattr(whole, name), getattr(alone, name)), name
        assert torch.equal(getattr(whole, name)[order], getattr(shuffled, name)), name
        if name != "mse_unguided":
            assert torch.equal(getattr(whole, name)[:, [2]], getattr(one_strength, name)), name


class Labelled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.label = torch.nn.Conv2d(3, 3, 3, padding=1).double(), torch.nn.Embedding(3, 3).double()

    def forward(self, x, t, labels):
        return torch.tanh(self.mix(x) + self.label(labels)[:, :, None, None]) * (1 + t / 1000)


def as_specified(x, t, labels):
    """predict_noise(x [N, C, H, W], t: int, labels [N] long) -> [N, C, H, W]"""
    assert x.shape == (len(labels), 3, 12, 12)
    assert isinstance(t, int)
    assert labels.dtype == torch.long
    return 0.5 * x + 0.1 * (labels == 0).to(x).view(-1, 1, 1, 1) * x.roll(1, dims=2) + t / 10_000


@pytest.mark.parametrize("predict", [as_specified, Labelled()], ids=["function", "module"])
def test_any_callable_of_slices_level_and_labels_predicts_noise(predict):
    x0, levels, strengths, seeds = some_slices(), [0, 100, 300, 500], [0.0, 2.0], [5, 6, 7]
    found = forward_evidence(predict, x0, levels=levels, strengths=strengths, schedule=SCHEDULE, seeds=seeds)
    with torch.no_grad():
        expected = literal(predict, x0, levels, strengths, seeds, [0, 1, 2], "ddim", "error", True)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name).numpy(), expected[name], rtol=1e-5, atol=1e-10, err_msg=name)


def test_a_network_may_predict_the_noise_of_two_labels_at_once():
    class WithPairs(Elementwise):
        def predict_pair(self, x, t, labels):
            pairs.append((len(x), t, labels))
            return torch.stack([self(x, t, torch.full((len(x),), label)) for label in labels])

    pairs: list = []
    settings: dict[str, Any] = {"levels": [0, 300], "strengths": [2.0], "schedule": SCHEDULE, "seeds": [5, 6, 7]}
    found = forward_evidence(WithPairs(), some_slices(), **settings)
    plain = forward_evidence(Elementwise(), some_slices(), **settings)
    assert pairs == [(3, 0, (HEALTHY, NULL)), (3, 300, (HEALTHY, NULL))]
    assert all(torch.equal(getattr(found, name), getattr(plain, name)) for name in FIELDS)


def test_two_predictions_a_level_in_one_batch_for_any_number_of_strengths():
    called = []

    def counting(x, t, labels):
        called.append((len(x), t, labels.tolist()))
        return torch.zeros_like(x)

    forward_evidence(
        counting, some_slices(), levels=[0, 10, 20], strengths=range(8), schedule=SCHEDULE, seeds=[0, 1, 2]
    )
    assert called == [(6, t, [0, 0, 0, 2, 2, 2]) for t in (0, 10, 20)]


def test_nothing_grows_with_the_number_of_levels_but_the_curves():
    """Counts the large tensors alive at the last level."""

    def alive_at_the_end(levels):
        alive = []

        def listen(level, _signal_map):
            if level.t == levels[-1]:
                gc.collect()
                tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
                alive.append(sum(one.numel() for one in tensors if one.numel() >= 3 * 16 * 16))

        forward_evidence(
            Elementwise(), some_slices(3, 2, 16), levels=levels, strengths=[0.0, 1.0], schedule=SCHEDULE,
            seeds=[0, 1, 2], on_level=listen,
        )  # fmt: skip
        return alive[0]

    assert alive_at_the_end(range(0, 400, 2)) == alive_at_the_end(range(0, 400, 40)) > 0


def test_spread_levels():
    assert spread_levels(60) == tuple(range(0, 600, 10))
    assert spread_levels(600) == tuple(range(600))
    assert spread_levels(1) == (0,)
    assert len(spread_levels(7)) == 7
    with pytest.raises(MethodError, match="do not fit"):
        spread_levels(601)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"levels": []}, "levels must increase"),
        ({"levels": [5, 5]}, "levels must increase"),
        ({"levels": [0, 1000]}, "must lie in"),
        ({"strengths": []}, "strengths"),
        ({"strengths": [1, 1]}, "strengths"),
        ({"strengths": [float("nan")]}, "must be finite"),
        ({"seeds": [1]}, "1 seeds for 3 slices"),
        ({"channels": [3]}, "channel 3"),
        ({"channels": []}, "channels"),
        ({"encoding": "ddimm"}, "unknown encoding 'ddimm'"),
        ({"signal": "x"}, "unknown signal"),
    ],
)
def test_invalid_arguments_are_refused(changes, match):
    arguments = {"levels": [0], "strengths": [1.0], "schedule": SCHEDULE, "seeds": [0, 1, 2]}
    with pytest.raises((ConfigError, MethodError), match=match):
        forward_evidence(Elementwise(), some_slices(), **{**arguments, **changes})


def test_a_network_that_overflows_is_reported():
    def overflowing(x, _t, _labels):
        return x / 0

    with pytest.raises(MethodError, match="non-finite"):
        forward_evidence(overflowing, some_slices(), levels=[0], strengths=[1.0], schedule=SCHEDULE, seeds=[0, 1, 2])
