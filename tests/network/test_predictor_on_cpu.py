"""The noise predictor with a small network."""

import copy

import pytest
import torch

from anofpdm.network.config import UNetConfig
from anofpdm.network.predictor import NoisePredictor, load_trained
from anofpdm.network.unet import UNet
from tests import toys
from tests.network.trainers import without_zeros

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toys.untrained(tmp_path_factory.mktemp("made"))


def test_the_oldest_graph_is_dropped(made, monkeypatch):
    from anofpdm.network import predictor

    class FakeGraph:
        def __init__(self, function, *_inputs_and_pool):
            self.function = function

        def __call__(self, *inputs):
            return self.function(*inputs)

    monkeypatch.setattr(predictor, "CudaGraph", FakeGraph)
    predict = NoisePredictor(load_trained(made / "model", CPU).predict.network, CPU)
    predict._uses_graphs = True
    for count in range(1, predictor.MAX_GRAPHS + 2):
        predict(torch.zeros(count, 2, 16, 16), 0, torch.zeros(count, dtype=torch.long))
    assert [shape[0] for shape in predict._graphs] == list(range(2, predictor.MAX_GRAPHS + 2))


def test_float32_products_are_not_rounded_and_the_users_setting_is_restored(made):
    network, seen = load_trained(made / "model", CPU).predict.network, []
    network.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        NoisePredictor(network, CPU)(torch.zeros(1, 2, 16, 16), 0, torch.zeros(1, dtype=torch.long))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]


@pytest.mark.parametrize("labels", [(0, 2), (1, 2)])
def test_threads_over_slices_and_winograd_change_nothing(labels, monkeypatch):
    """The same noise as from one thread and direct convolutions, whatever the number of slices."""
    from anofpdm.network import predictor
    from anofpdm.network.fast.cpu import SliceThreads

    network = without_zeros(UNet(UNetConfig(2, channels=64, multipliers=(1, 2), attention=(2,), heads=2)))
    monkeypatch.setattr(predictor, "is_faster_here", lambda: False)
    plain = NoisePredictor(copy.deepcopy(network), CPU)
    plain._threads = None
    monkeypatch.setattr(predictor, "is_faster_here", lambda: True)
    fast = NoisePredictor(network, CPU)
    fast._threads = SliceThreads(2)
    threads, before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    for count in (1, 2, 5):
        x = torch.randn(count, 2, 16, 16, generator=torch.Generator().manual_seed(count))
        alone = torch.stack([plain(x, 300, torch.full((count,), label)) for label in labels])
        found = fast.predict_pair(x, 300, labels)
        assert not found.requires_grad
        torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (threads, before)
