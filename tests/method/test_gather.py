"""Evidence of many slices: batches, and what happens when memory runs out."""

from functools import partial

import numpy as np
import pytest
import torch

from anofpdm.errors import NotEnoughMemoryError
from anofpdm.method.evidence import EvidenceRequest, EvidenceSettings, concatenate
from anofpdm.method.gather import evidence_batches, regroup, slice_seeds
from anofpdm.network.config import UNetConfig
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.unet import UNet
from tests.method.worlds import FIELDS
from tests.network.trainers import without_zeros
from tests.segment.known_model import Rounding

CPU = torch.device("cpu")
SETTINGS = EvidenceSettings((0, 200, 400), (0, 1))
PIXELS = np.random.default_rng(0).uniform(-1, 1, (10, 2, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return without_zeros(UNet(UNetConfig(2, channels=8, multipliers=(1, 2), blocks=1, attention=(2,))))


def evidence_of(predict, batch, *callbacks):
    request = EvidenceRequest(SETTINGS, [0.0, 3.0], CPU, batch)
    return list(evidence_batches(predict, lambda rows: PIXELS[rows], slice_seeds(range(10)), request, *callbacks))


def check_alike(whole, parts):
    """Curves to 1e-4, single pixels of maps to 1e-2."""
    for name in FIELDS:
        near = 1e-2 if "maps" in name else 1e-4
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), rtol=near, atol=1e-2 * near)


def test_batches_change_nothing_and_are_regrouped_into_scans(network):
    predict, sizes = NoisePredictor(network, CPU), [1, 5, 3, 1]
    (whole,), batches = evidence_of(predict, 10), evidence_of(predict, 4)
    check_alike(whole, concatenate(batches))
    groups = list(regroup(iter(batches), sizes))
    assert [len(group) for group in groups] == sizes
    for name in FIELDS:
        assert torch.equal(getattr(concatenate(groups), name), getattr(concatenate(batches), name))


@pytest.mark.parametrize(
    ("count", "most", "expected"), [(763, 50, 48), (50, 50, 50), (51, 50, 26), (3, 50, 3), (0, 9, 9)]
)
def test_batches_have_nearly_equal_sizes(count, most, expected):
    assert EvidenceRequest(SETTINGS, [0.0], CPU, most).in_even_batches(count).batch == expected


def test_the_predictor_splits_batches_when_memory_is_short(network, monkeypatch):
    sizes, forward = [], NoisePredictor._forward

    def with_little_memory(most, predictor, x, levels, labels):
        if len(x) > most:
            raise torch.OutOfMemoryError("out of memory")
        sizes.append(len(x))
        return forward(predictor, x, levels, labels)

    (whole,), predict = evidence_of(NoisePredictor(network, CPU), 10), NoisePredictor(network, CPU)
    monkeypatch.setattr(predict, "_forward", partial(with_little_memory, 6, predict))
    check_alike(whole, *evidence_of(predict, 10))
    assert max(sizes) == predict.max_batch == 5
    monkeypatch.setattr(predict, "_forward", partial(with_little_memory, 0, predict))
    with pytest.raises(NotEnoughMemoryError, match="single slice"):
        evidence_of(predict, 4)


def test_the_batch_is_halved_when_memory_is_short_outside_the_network():
    largest, progress = 3, []

    def run_out_of_memory(level, signal_map):
        if len(signal_map()) > largest and level.number == 1:
            raise torch.OutOfMemoryError("out of memory")

    def gather(on_level=None):
        record = lambda _task, done, total, _note="": progress.append((done, total))  # noqa: E731
        return concatenate(evidence_of(Rounding(), 7, record, on_level))

    whole, halved = gather(), gather(run_out_of_memory)
    assert all(torch.equal(getattr(halved, name), getattr(whole, name)) for name in FIELDS)
    assert progress[-1] == (30, 30)  # slices times levels
    largest = 0
    with pytest.raises(NotEnoughMemoryError, match="single slice"):
        gather(run_out_of_memory)
