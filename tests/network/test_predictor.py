from dataclasses import asdict

import pytest
import torch

from anofpdm.errors import ModelError
from anofpdm.network import checkpoint
from anofpdm.network.predictor import load_trained, padded, recorded_size
from anofpdm.network.unet import UNet, UNetConfig


def test_the_largest_batch_so_far_is_recorded_as_it_is():
    assert recorded_size(100, []) == 100
    assert recorded_size(101, [100]) == 101


def test_a_recording_wastes_less_than_a_quarter():
    sizes = {count: recorded_size(count, [100]) for count in range(1, 101)}
    assert not {count: size for count, size in sizes.items() if not count <= size <= count * 5 / 4}


def test_scans_of_every_length_take_few_recordings():
    known = [100]
    for count in [*range(100, 30, -1), *range(31, 100)]:
        size = recorded_size(count, known)
        if size not in known:
            known.append(size)
    assert len(known) <= 9


def test_padding_repeats_the_last_entry():
    x = torch.arange(6.0).view(3, 2)
    assert torch.equal(padded(x, 5), torch.tensor([[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]], dtype=torch.float32))
    assert padded(x, 3) is x


@pytest.mark.parametrize(
    ("changes", "network"),
    [
        ({"task": None}, {}),
        ({"modalities": "ab"}, {}),
        ({"modalities": ["a"]}, {}),
        ({"modalities": ["a", "a"]}, {}),
        ({"size": 0}, {}),
        ({"size": 10**6}, {}),
        ({}, {"channels": 4096}),  # which would take gigabytes
        ({}, {"blocks": 10**9}),  # which would take for ever
        ({}, {"dropout": 7}),
        ({}, {"heads": 0}),
        ({}, {"multipliers": "ab"}),
        ({}, {"unheard": 1}),
    ],
)
def test_a_whole_model_that_cannot_be_is_refused(tmp_path, changes, network):
    config = UNetConfig(2, channels=4, multipliers=(1,), blocks=1, attention=(), heads=1)
    said = {"format": checkpoint.FORMAT, "task": "guided", "modalities": ["a", "b"], "size": 16}
    weights = UNet(config).state_dict()
    checkpoint.save_model(tmp_path, weights, {**said, "network": asdict(config)})
    load_trained(tmp_path, torch.device("cpu"))
    wrong = {**said, **changes, "network": {**asdict(config), **network}}
    checkpoint.save_model(tmp_path, weights, {name: value for name, value in wrong.items() if value is not None})
    with pytest.raises(ModelError, match=tmp_path.name):
        load_trained(tmp_path, torch.device("cpu"))
