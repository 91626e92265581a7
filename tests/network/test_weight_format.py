"""Formats of saved weights: sizes, rounding errors, a round trip through files."""

import pytest
import torch

from anofpdm.network import checkpoint
from anofpdm.network.classifier import build_network
from anofpdm.network.config import preset
from anofpdm.network.weight_format import SCALE, restore, round_to, store
from anofpdm.options import Task, WeightFormat

CONFIG = {"format": checkpoint.FORMAT}


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "conv": torch.randn(32, 16, 3, 3, generator=generator) * torch.logspace(-3, 3, 32)[:, None, None, None],
        "bias": torch.randn(32, generator=generator),
        "steps": torch.arange(5),
        "zeros": torch.zeros(64, 64),
    }


@pytest.mark.parametrize(("stored", "error"), [("float32", 0), ("float16", 2**-11), ("int8", 0.5 / 127)])
def test_rounding_errors_are_bounded_per_channel(weights, stored, error):
    """float16 rounds relative to each value, int8 to the largest of its channel."""
    again = round_to(weights, WeightFormat(stored))
    assert again.keys() == weights.keys()
    largest = weights["conv"].abs().flatten(1).amax(1)[:, None, None, None]
    assert ((again["conv"] - weights["conv"]).abs() <= 1.01 * error * largest + 1e-7).all()
    assert torch.equal(again["steps"], weights["steps"])
    assert torch.equal(again["zeros"], weights["zeros"])
    assert again["conv"].dtype == torch.float32


def test_files_are_read_back_and_smaller(weights, tmp_path):
    sizes: dict[str, int] = {}
    for stored in WeightFormat:
        (tmp_path / stored).mkdir()
        checkpoint.save_model(tmp_path / stored, store(weights, stored), CONFIG)
        again, _, _ = checkpoint.load_model(tmp_path / stored)
        expected = round_to(weights, stored)
        assert all(torch.equal(again[name].float(), expected[name].float()) for name in weights)
        sizes[stored] = (tmp_path / stored / checkpoint.WEIGHTS).stat().st_size
    assert sizes["int8"] < 0.6 * sizes["float16"] < 0.4 * sizes["float32"]


def test_scales_that_do_not_fit_are_refused(weights):
    tensors = store(weights, WeightFormat.INT8)
    tensors["conv" + SCALE] = torch.ones(3)
    with pytest.raises(ValueError, match="do not fit their scales"):
        restore(tensors)


def test_a_compact_network_ships_in_less_than_12_mb():
    weights = build_network(Task.GUIDED, preset("compact", 4)).state_dict()
    assert sum(tensor.nbytes for tensor in store(weights, WeightFormat.INT8).values()) < 12e6
