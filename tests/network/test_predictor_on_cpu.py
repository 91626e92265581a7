"""The noise predictor with a small network."""

import pytest
import torch

from anofpdm.network.predictor import NoisePredictor, load_trained
from tests import toys

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
