"""The noise predictor, and models that it is loaded from."""

import copy

import pytest
import torch

from anofpdm.choices import Task
from anofpdm.errors import ModelError
from anofpdm.network import checkpoint, predictor
from anofpdm.network.config import ModelConfig, UNetConfig
from anofpdm.network.fast.cpu import SliceThreads
from anofpdm.network.fast.winograd import WinogradConvolution
from anofpdm.network.predictor import NoisePredictor, graph_batch_size, load_trained
from anofpdm.network.unet import UNet
from anofpdm.util.artifacts import to_plain
from tests.network.trainers import CPU, NETWORK, without_zeros


def test_padding_adds_at_most_a_quarter_and_scans_of_every_length_need_few_graphs():
    """A new largest batch is not padded."""
    assert graph_batch_size(100, []) == 100
    assert graph_batch_size(101, [100]) == 101
    known = [100]
    for count in [*range(100, 0, -1), *range(1, 101)]:
        size = graph_batch_size(count, known)
        assert count <= size <= count * 5 / 4
        known += [] if size in known else [size]
    assert len([size for size in known if size > 30]) <= 9


def test_float32_products_are_not_rounded_and_the_users_setting_is_restored():
    network, seen = UNet(NETWORK), []
    network.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        NoisePredictor(network, CPU)(torch.zeros(1, 2, 16, 16), 0, torch.zeros(1, dtype=torch.long))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest"]


def test_threads_over_slices_and_winograd_change_nothing(monkeypatch):
    """The same noise as from one thread and direct convolutions, whatever the number of slices."""
    network = without_zeros(UNet(UNetConfig(2, channels=64, multipliers=(1, 2), blocks=1, attention=(2,))))
    monkeypatch.setattr(predictor, "is_faster_here", lambda: False)
    plain = NoisePredictor(copy.deepcopy(network), CPU)
    plain._threads = None
    monkeypatch.setattr(predictor, "is_faster_here", lambda: True)
    fast = NoisePredictor(network, CPU)
    assert sum(isinstance(layer, WinogradConvolution) for layer in network.modules()) > 4
    fast._threads = SliceThreads(2)
    threads, before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    for count in (1, 2, 5):
        x, labels = torch.randn(count, 2, 16, 16), torch.arange(count) % 3
        noise = fast(x, 300, labels)
        assert not noise.requires_grad
        torch.testing.assert_close(noise, plain(x, 300, labels), rtol=0, atol=1e-5)
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (threads, before)


@pytest.mark.parametrize(
    ("changes", "network"),
    [
        ({"task": None}, {}),
        ({"modalities": ["a"]}, {}),
        ({"modalities": ["a", "a"]}, {}),
        ({"size": 10**6}, {}),
        ({"expects": {"template": "talairach"}}, {}),
        ({"other": 1}, {}),
        ({}, {"channels": 4096}),  # would take gigabytes
        ({}, {"blocks": 10**9}),  # would not end
        ({}, {"dropout": 7}),
        ({}, {"heads": 3}),
        ({}, {"null_label": 3}),
        ({}, {"channels": 6}),
        ({}, {"unknown": 1}),
    ],
)
def test_an_invalid_configuration_is_refused(tmp_path, changes, network):
    config = UNetConfig(2, channels=4, multipliers=(1,), blocks=1, attention=(), heads=1)
    header, weights = to_plain(ModelConfig(Task.GUIDED, config, ("a", "b"), 16)), UNet(config).state_dict()
    checkpoint.save_model(tmp_path, weights, header)
    assert load_trained(tmp_path, CPU).modalities == ("a", "b")
    wrong = {**header, **changes, "network": {**header["network"], **network}}
    checkpoint.save_model(tmp_path, weights, {name: value for name, value in wrong.items() if value is not None})
    with pytest.raises(ModelError, match=tmp_path.name):
        load_trained(tmp_path, CPU)
