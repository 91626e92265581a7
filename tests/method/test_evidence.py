import gc
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from anofpdm.choices import Signal
from anofpdm.errors import ConfigError, MethodError
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method import NoiseSchedule, forward_evidence
from anofpdm.method.evidence import EvidenceRequest, EvidenceSettings, concatenate, spread_levels
from anofpdm.method.gather import evidence_batches
from tests.method.worlds import FIELDS, Elementwise, TwoGaussians, alpha_bars, literal, some_slices

SCHEDULE = NoiseSchedule.linear()
SIGNALS = [signal for signal in Signal if signal != Signal.AUTO]
SPREAD = list(range(0, 600, 60))


def gathered(predict, x0=None, **options):
    """Evidence of three slices of three channels, unless given."""
    x0 = some_slices(3, 3, 12) if x0 is None else x0
    common = {"levels": SPREAD, "strengths": [0.0, 2.0], "seeds": range(5, 5 + len(x0)), "schedule": SCHEDULE}
    return forward_evidence(predict, x0, **{**common, **options})


def check_equal(evidence, expected):
    for name in FIELDS:
        np.testing.assert_allclose(getattr(evidence, name).numpy(), expected[name], rtol=1e-5, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("encoding", ["ddim", "ddpm"])
@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("levels", [[0], SPREAD, [3, 5, 200, 201, 900]])
def test_equals_the_formulas_written_out(encoding, signal, clamp, levels):
    x0, strengths, channels, world, maps = some_slices(3, 3, 12), [0.0, 5.0, -1.0], [0, 2], Elementwise(), []
    options = {"levels": np.array(levels), "strengths": strengths, "channels": channels}
    evidence = gathered(
        world, x0, encoding=encoding, signal=signal, clamp=clamp, on_level=lambda _, current: maps.append(current()),
        **options,
    )  # fmt: skip
    check_equal(evidence, literal(world, x0, levels, strengths, [5, 6, 7], channels, encoding, signal, clamp))
    assert evidence.settings.signal == signal
    at_end = torch.stack(maps)[[levels.index(int(t)) for t in evidence.end_step[:, 1]], [0, 1, 2], 1]
    torch.testing.assert_close(evidence.last_maps[:, 1], at_end)


def test_several_signals_of_one_pass_equal_those_of_a_pass_each():
    world, calls = Elementwise(), []

    def counting(x, t, labels):
        calls.append((len(x), t, labels.tolist()))
        return world(x, t, labels)

    settings = EvidenceSettings(tuple(SPREAD), (0, 1, 2))
    request = EvidenceRequest(settings, [0.0, 2.0], torch.device("cpu"), signals=tuple(SIGNALS))
    x0 = some_slices(3, 3, 12)
    (together,) = evidence_batches(counting, lambda rows: x0[rows], range(5, 8), request)
    assert calls == [(6, t, [HEALTHY] * 3 + [NULL] * 3) for t in SPREAD]  # for any number of strengths and signals
    for signal in SIGNALS:
        alone = gathered(world, signal=signal)
        shared = together.with_maps_of(replace(together.settings, signal=signal))
        assert shared.settings == alone.settings
        assert all(torch.equal(getattr(shared, name), getattr(alone, name)) for name in FIELDS)


@pytest.mark.parametrize("peak", [0, 9, 4])
def test_the_end_step_may_be_the_first_level_or_the_last(peak):
    def leaning(x, t, labels):
        """Guidance that moves the estimate most at one level: e_h - e_0 such that g_t - u_t is as wanted."""
        a = alpha_bars()[t]
        lean = (0.2 if t == SPREAD[peak] else 0.1) * math.sqrt(a) / math.sqrt(1 - a)
        return 0.0 * x + torch.where(labels == 0, lean, 0.0).to(x)[:, None, None, None]

    evidence = gathered(leaning, strengths=[0.0], clamp=False)
    assert evidence.end_step.tolist() == [[SPREAD[peak]]] * 3


def test_two_gaussians_have_closed_forms():
    """Between Gaussians of one variance, the estimates differ by (1 + w)(1 - gain sqrt(a))(difference of means)."""
    healthy_mean, null_mean, variance, w = -0.3, 0.1, 0.25, 3.0
    levels, world = list(range(0, 1000, 100)), TwoGaussians(healthy_mean, null_mean, variance)
    evidence = gathered(world, some_slices(2, 1, 8), levels=levels, strengths=[w], clamp=False, encoding="ddpm")
    a = alpha_bars()[levels]
    shrink = (1 - a) / (a * variance + 1 - a)  # 1 - gain sqrt(a)
    moved = ((1 + w) * shrink * (healthy_mean - null_mean)) ** 2
    np.testing.assert_allclose(evidence.divergence[:, 0].numpy(), np.broadcast_to(moved, (2, 10)), rtol=1e-6)
    assert (evidence.end_step == levels[-1]).all()  # shrink grows with the noise


def test_ddim_with_an_exact_denoiser_keeps_the_standardised_pixel():
    """The exact flow of a Gaussian maps quantiles to quantiles: (x_t - mean_t) / deviation_t stays what it was."""
    variance, mean, seen = 0.09, 0.2, []
    gathered(
        TwoGaussians(mean, mean, variance), some_slices(1, 1, 8) * 0.3, levels=range(0, 1000, 2), clamp=False,
        on_level=lambda level, _: seen.append((level.t, level.x)),
    )  # fmt: skip
    bars = alpha_bars()
    first, *_, last = [(x - bars[t] ** 0.5 * mean) / (bars[t] * variance + 1 - bars[t]) ** 0.5 for t, x in seen]
    torch.testing.assert_close(last, first, rtol=0.03, atol=0.03)


def test_equal_predictions_do_not_diverge():
    still = gathered(Elementwise(difference=0.0), strengths=[7.0])
    assert still.divergence.abs().max() == 0
    assert (still.end_step == 0).all()


@pytest.mark.parametrize("encoding", ["ddim", "ddpm"])
def test_with_an_elementwise_denoiser_batches_and_order_change_no_bit(encoding):
    x0, seeds, order = some_slices(9, 2, 48, dtype=torch.float32), list(range(20, 29)), [8, 0, 3, 5, 1, 2, 7, 4, 6]
    options = {"strengths": [0.0, 1.0, 4.0], "encoding": encoding}
    whole = gathered(Elementwise(), x0, seeds=seeds, **options)
    alone = concatenate([gathered(Elementwise(), x0[[i]], seeds=[seeds[i]], **options) for i in range(9)])
    shuffled = gathered(Elementwise(), x0[order], seeds=[seeds[i] for i in order], **options)
    last_strength = gathered(Elementwise(), x0, seeds=seeds, **{**options, "strengths": [4.0]})
    for name in FIELDS:
        assert torch.equal(getattr(whole, name), getattr(alone, name)), name
        assert torch.equal(getattr(whole, name)[order], getattr(shuffled, name)), name
        if name != "mse_unguided":
            assert torch.equal(getattr(whole, name)[:, [2]], getattr(last_strength, name)), name


def test_nothing_grows_with_the_number_of_levels_but_the_curves():
    """Counts the large tensors alive at the last level."""

    def alive_at_the_end(levels):
        alive = []

        def listen(level, _signal_map):
            if level.t == levels[-1]:
                gc.collect()
                tensors = [item for item in gc.get_objects() if type(item) is torch.Tensor]
                alive.append(sum(tensor.numel() for tensor in tensors if tensor.numel() >= 3 * 16 * 16))

        gathered(Elementwise(), some_slices(3, 2, 16), levels=levels, on_level=listen)
        return alive[0]

    assert alive_at_the_end(range(0, 400, 4)) == alive_at_the_end(range(0, 400, 40)) > 0


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
        ({"levels": [-1, 5]}, "levels must increase from 0"),
        ({"levels": [0, 1000]}, "must lie in"),
        ({"strengths": []}, "strengths"),
        ({"strengths": [1, 1]}, "strengths"),
        ({"strengths": [float("nan")]}, "must be finite"),
        ({"seeds": [1]}, "1 seeds for 3 slices"),
        ({"channels": [3]}, "channel 3"),
        ({"channels": []}, "channels"),
        ({"encoding": "ddimm"}, "unknown encoding 'ddimm'"),
        ({"signal": "x"}, "unknown signal"),
        ({"signal": "auto"}, "needs a signal"),
        ({"predict": lambda x, _t, _labels: x / 0}, "non-finite"),
        ({"x0": torch.zeros(3, 12, 12)}, r"must be \[N, C, H, W\]"),
    ],
)
def test_invalid_arguments_are_refused(changes, match):
    with pytest.raises((ConfigError, MethodError), match=match):
        gathered(**{"predict": Elementwise(), **changes})
