"""Formats of saved weights: sizes, rounding errors, a round trip through files."""

import pytest
import torch

from anofpdm.choices import WeightFormat
from anofpdm.network import checkpoint
from anofpdm.network.weight_format import SCALE, restore, store


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "conv": torch.randn(32, 16, 3, 3, generator=generator) * torch.logspace(-3, 3, 32)[:, None, None, None],
        "bias": torch.randn(32, generator=generator),
        "steps": torch.arange(5),
        "zeros": torch.zeros(64, 64),
    }


@pytest.mark.parametrize(
    ("stored", "error", "size"), [("float32", 0, 1), ("float16", 2**-11, 0.55), ("int8", 0.5 / 127, 0.35)]
)
def test_rounding_errors_are_bounded_per_channel_and_files_are_smaller(weights, tmp_path, stored, error, size):
    """float16 rounds relative to each value, int8 to the largest of its channel."""
    tensors = store(weights, WeightFormat(stored))
    again = restore(tensors)
    assert again.keys() == weights.keys()
    largest = weights["conv"].abs().flatten(1).amax(1)[:, None, None, None]
    assert ((again["conv"] - weights["conv"]).abs() <= 1.01 * error * largest + 1e-7).all()
    assert torch.equal(again["steps"], weights["steps"])
    assert torch.equal(again["zeros"].float(), weights["zeros"])
    checkpoint.save_model(tmp_path, tensors, {"format": checkpoint.FORMAT})
    loaded, _, _ = checkpoint.load_model(tmp_path)
    assert all(torch.equal(loaded[name], again[name]) for name in weights)
    whole, smaller = (sum(tensor.nbytes for tensor in some.values()) for some in (weights, tensors))
    assert smaller <= size * whole


def test_scales_that_do_not_fit_are_refused(weights):
    tensors = store(weights, WeightFormat.INT8)
    tensors["conv" + SCALE] = torch.ones(3)
    with pytest.raises(ValueError, match="do not fit their scales"):
        restore(tensors)
