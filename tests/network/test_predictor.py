from dataclasses import asdict

import pytest
import torch

from anofpdm.errors import ModelError
from anofpdm.network import checkpoint
from anofpdm.network.config import UNetConfig
from anofpdm.network.predictor import graph_batch_size, load_trained, pad_batch
from anofpdm.network.unet import UNet


def test_a_new_largest_batch_is_not_padded():
    assert graph_batch_size(100, []) == 100
    assert graph_batch_size(101, [100]) == 101


def test_padding_adds_at_most_a_quarter():
    sizes = {count: graph_batch_size(count, [100]) for count in range(1, 101)}
    assert not {count: size for count, size in sizes.items() if not count <= size <= count * 5 / 4}


def test_scans_of_every_length_need_few_graphs():
    known = [100]
    for count in [*range(100, 30, -1), *range(31, 100)]:
        size = graph_batch_size(count, known)
        if size not in known:
            known.append(size)
    assert len(known) <= 9


def test_padding_repeats_the_last_entry():
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(pad_batch(x, 5), torch.tensor([[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]], dtype=torch.float32))
    assert pad_batch(x, 3) is x


@pytest.mark.parametrize(
    ("changes", "network"),
    [
        ({"task": None}, {}),
        ({"modalities": "ab"}, {}),
        ({"modalities": ["a"]}, {}),
        ({"modalities": ["a", "a"]}, {}),
        ({"size": 0}, {}),
        ({"size": 10**6}, {}),
        ({}, {"channels": 4096}),  # would take gigabytes
        ({}, {"blocks": 10**9}),  # would not end
        ({}, {"dropout": 7}),
        ({}, {"heads": 0}),
        ({}, {"multipliers": "ab"}),
        ({}, {"unknown": 1}),
    ],
)
def test_an_invalid_configuration_is_refused(tmp_path, changes, network):
    config = UNetConfig(2, channels=4, multipliers=(1,), blocks=1, attention=(), heads=1)
    payload = {"format": checkpoint.FORMAT, "task": "guided", "modalities": ["a", "b"], "size": 16}
    weights = UNet(config).state_dict()
    checkpoint.save_model(tmp_path, weights, {**payload, "network": asdict(config)})
    load_trained(tmp_path, torch.device("cpu"))
    wrong = {**payload, **changes, "network": {**asdict(config), **network}}
    checkpoint.save_model(tmp_path, weights, {name: value for name, value in wrong.items() if value is not None})
    with pytest.raises(ModelError, match=tmp_path.name):
        load_trained(tmp_path, torch.device("cpu"))
