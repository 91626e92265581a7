"""Tuning of comparison methods with lesion masks."""

import numpy as np
import pytest

from anofpdm.errors import EvaluationError
from anofpdm.method.mask import mask
from anofpdm.study.comparison.names import Setup
from anofpdm.study.comparison.tuning import THRESHOLDS, search_settings, settings_beyond
from tests import toys

UNHEALTHY, MIXED = Setup.UNHEALTHY, Setup.MIXED


def test_best_threshold_and_setting_of_each_setup():
    rng = np.random.default_rng(0)
    truth = np.zeros((6, 32, 32), bool)
    truth[:3, 4:16, 4:16] = True
    good = np.where(truth, 0.5, 0.2) + rng.normal(0, 0.02, truth.shape)
    bad = rng.random(truth.shape)
    maps = {1: bad, 2: good}
    best_first = search_settings(
        lambda setting: maps[int(setting["level"])], [{"level": 1}, {"level": 2}], truth, beyond=False
    )
    for setup in Setup:
        first, second = best_first[setup]
        assert (first.setting, second.setting) == ({"level": 2}, {"level": 1})
        assert 0.2 < first.threshold < 0.5
        assert first.dice > second.dice
    at_cuts = [zip(mask(good, np.full(6, cut)), truth, strict=True) for cut in THRESHOLDS]
    best = max(np.mean([toys.dice(m, t) if (m | t).any() else 1.0 for m, t in pairs]) for pairs in at_cuts)
    assert best_first[MIXED][0].dice == pytest.approx(best)
    assert THRESHOLDS[0] == 0.01
    assert THRESHOLDS[-1] == 0.69


def test_search_continues_beyond_the_grid():
    grid = [{"level": level, "scale": scale} for level in (300, 200, 400) for scale in (10.0, 100.0)]
    assert settings_beyond([{"level": 400, "scale": 10.0}], grid) == [
        {"level": 533, "scale": 10.0},
        {"level": 400, "scale": 1.0},
    ]
    assert (
        settings_beyond([{"level": 300, "invert": 1}], [{"level": 300, "invert": 1}, {"level": 200, "invert": 0}]) == []
    )
    truth = np.zeros((4, 32, 32), bool)
    truth[:2, 4:16, 4:16] = True
    tried = []

    def maps_of(setting):
        tried.append(setting["level"])
        shift = abs(setting["level"] - 530) // 40  # the lesion is marked where it is at about 530
        return np.where(np.roll(truth, shift, axis=2), 0.5, 0.0)

    best_first = search_settings(maps_of, [{"level": 300}, {"level": 400}], truth)
    assert tried == [300, 400, 533, 710]
    tried.clear()
    from_below = search_settings(maps_of, [{"level": 200}, {"level": 240}], truth, setups=[UNHEALTHY])
    assert tried == [200, 240, 288, 346, 416, 500, 601]
    assert from_below[UNHEALTHY][0].setting == {"level": 500}
    assert list(search_settings(maps_of, [{"level": 300}], truth, setups=[UNHEALTHY])) == ["unhealthy"]

    def fails_above_400(setting):
        if setting["level"] > 400:
            raise EvaluationError("non-finite maps")
        return maps_of(setting)

    found_below = search_settings(fails_above_400, [{"level": 300}, {"level": 400}], truth)
    assert [tuned.setting["level"] for tuned in found_below[UNHEALTHY]] == [400, 300]
    assert best_first[UNHEALTHY][0].setting == {"level": 533}
    assert best_first[UNHEALTHY][0].dice > 0.95


def test_empty_masks_at_high_thresholds_do_not_hide_low_maps():
    """Slices with a faint lesion, and a healthy one with a bright spot, for which an empty mask is best."""
    truth = np.zeros((5, 32, 32), bool)
    truth[:4, 4:16, 4:16] = True
    maps = np.where(truth, 0.006, 0.0)
    maps[4, 4:16, 4:16] = 0.02
    best_first = search_settings(lambda _: maps, [{"level": 1}], truth)
    assert best_first[MIXED][0].threshold <= 0.006
    assert best_first[MIXED][0].dice > 0.75
