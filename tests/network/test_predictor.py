import pytest
import torch

from anofpdm.network.predictor import padded, recorded_size


def test_the_largest_batch_so_far_is_recorded_as_it_is():
    assert recorded_size(100, []) == 100
    assert recorded_size(101, [100]) == 101


@pytest.mark.parametrize("count", range(1, 101))
def test_less_than_a_quarter_is_wasted_and_the_sizes_stay_few(count):
    size = recorded_size(count, [100])
    assert count <= size <= max(count * 5 / 4, count)


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
