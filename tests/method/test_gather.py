"""Evidence of many slices: batches, and what happens when memory runs out."""

import numpy as np
import pytest
import torch

from anofpdm.cohorts import open_cohort
from anofpdm.errors import NotEnoughMemoryError
from anofpdm.method.evidence import EvidenceSettings, concatenate
from anofpdm.method.gather import EvidenceRequest, evidence_batches, regroup, slice_seeds
from anofpdm.network.predictor import NoisePredictor, load_trained
from tests import toys
from tests.method.worlds import FIELDS
from tests.segment.known_model import Rounding

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toys.untrained(tmp_path_factory.mktemp("made"))


def evidence(predict, pixels, batch):
    settings = EvidenceSettings(tuple(range(0, 600, 100)), (0, 1))
    request = EvidenceRequest(settings, [0.0, 3.0], CPU, batch)
    return concatenate(evidence_batches(predict, lambda rows: pixels[rows], slice_seeds(range(len(pixels))), request))


def test_the_batch_size_changes_curves_by_less_than_1e_4(made):
    predict = load_trained(made / "model", CPU).predict
    pixels = open_cohort(made / "cohort").pixels(np.arange(14))
    one, other = evidence(predict, pixels, 14), evidence(predict, pixels, 4)
    check_alike(one, other)


def test_batches_are_regrouped_into_scans(made):
    predict = load_trained(made / "model", CPU).predict
    pixels, sizes = open_cohort(made / "cohort").pixels(np.arange(9)), [1, 5, 2, 1]
    request = EvidenceRequest(EvidenceSettings((0, 100), (0, 1)), [0.0], CPU, 4)
    batches = list(evidence_batches(predict, lambda rows: pixels[rows], slice_seeds(range(9)), request))
    groups = list(regroup(iter(batches), sizes))
    assert [len(group) for group in groups] == sizes
    assert torch.equal(concatenate(groups).maps, concatenate(batches).maps)
    assert torch.equal(concatenate(groups).divergence, concatenate(batches).divergence)


@pytest.mark.parametrize(
    ("count", "most", "expected"), [(763, 50, 48), (50, 50, 50), (51, 50, 26), (3, 50, 3), (0, 9, 9)]
)
def test_batches_have_nearly_equal_sizes(count, most, expected):
    request = EvidenceRequest(EvidenceSettings((0,), (0,)), [0.0], CPU, most)
    assert request.in_even_batches(count).batch == expected


def check_alike(one, other):
    """Curves to 1e-4, single pixels of maps to 1e-2."""
    for name in FIELDS:
        near = 1e-2 if "maps" in name else 1e-4
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=near, atol=1e-2 * near)


def test_the_predictor_splits_batches_when_memory_is_short(made):
    trained = load_trained(made / "model", CPU).predict
    pixels = open_cohort(made / "cohort").pixels(np.arange(10))
    largest = []

    class SmallMemory(NoisePredictor):
        def _forward(self, x, levels, labels):
            if len(x) > 6:
                raise torch.OutOfMemoryError("out of memory")
            largest.append(len(x))
            return super()._forward(x, levels, labels)

    predictor = SmallMemory(trained.network, CPU)
    one, other = evidence(trained, pixels, 10), evidence(predictor, pixels, 10)
    assert max(largest) == predictor.max_batch == 5
    check_alike(one, other)

    class NoMemory(NoisePredictor):
        def _forward(self, *_):
            raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(NotEnoughMemoryError, match="single slice"):
        evidence(NoMemory(trained.network, CPU), pixels, 4)


def test_the_batch_is_halved_when_memory_is_short_outside_the_network():
    pixels = np.random.default_rng(0).uniform(-1, 1, (7, 2, 8, 8)).astype(np.float32)
    largest, progress = 3, []

    def gather(on_level=None):
        request = EvidenceRequest(EvidenceSettings((0, 20, 40), (0,)), [0.0], CPU, 7)
        record = lambda _task, *at: progress.append(at)  # noqa: E731
        seeds = slice_seeds(range(7))
        return concatenate(
            list(evidence_batches(Rounding(), lambda rows: pixels[rows], seeds, request, record, on_level))
        )

    def run_out_of_memory(level, signal_map):
        if len(signal_map()) > largest and level.number == 1:
            raise torch.OutOfMemoryError("out of memory")

    whole, found = gather(), gather(run_out_of_memory)
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(whole, name), rtol=0, atol=0)
    assert progress[-1] == (21, 21)  # slices times levels
    largest = 0
    with pytest.raises(NotEnoughMemoryError, match="single slice"):
        gather(run_out_of_memory)
