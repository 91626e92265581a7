import pytest
import torch
from sklearn.metrics import roc_auc_score

from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.rivals.guide import Guide, describe_rating, rate_classifier

CPU = torch.device("cpu")


def by_brightness(x, _t):
    return x.amax(dim=(1, 2, 3))


def test_classifier_is_rated_on_held_out_noised_slices(cohort):
    rows = cohort.rows("val")
    unhealthy = cohort.labels[rows] == 1
    assert 0 < unhealthy.sum() < len(rows)
    guide = Guide(by_brightness, by_brightness, cohort.modalities, 16, "")
    rating = rate_classifier(guide, cohort, CPU, (0, 999))
    x0 = torch.from_numpy(cohort.pixels(rows))
    for t, auc in rating.items():
        noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(t))
        literal = by_brightness(NoiseSchedule.linear().add_noise(x0, t, noise), t)
        assert auc == pytest.approx(roc_auc_score(unhealthy, literal))
    assert describe_rating(rate_classifier(guide, cohort, CPU, (0,), split="nowhere")) == ""


def test_weak_classifier_has_a_note():
    assert "weak" in describe_rating({0: 0.73, 500: 0.75})
    assert "weak" not in describe_rating({0: 0.97, 500: 0.6})
    assert "0.97 at noise level 0" in describe_rating({0: 0.97})
