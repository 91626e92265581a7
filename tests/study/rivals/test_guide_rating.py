import pytest
import torch
from sklearn.metrics import roc_auc_score

from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.network.predictor import Guide
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.rivals.guide_rating import describe_rating, rate_classifier
from tests import toys

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    split = "\n".join(f"p{number},{('train', 'val')[number % 2]}" for number in range(4))
    (folder / "split.csv").write_text(f"patient,split\n{split}\n")
    scans = toys.brats_cohort(folder / "scans", 4)
    prepare(plan_cohort("brats21", scans, size=16, split=folder / "split.csv"), folder / "cohort")
    return open_cohort(folder / "cohort")


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
    assert describe_rating(rate_classifier(guide, cohort, CPU, (0,), split="test")) == ""  # an empty split


def test_weak_classifier_has_a_note():
    assert "weak" in describe_rating({0: 0.73, 500: 0.75})
    assert "weak" not in describe_rating({0: 0.97, 500: 0.6})
    assert "0.97 at noise level 0" in describe_rating({0: 0.97})
