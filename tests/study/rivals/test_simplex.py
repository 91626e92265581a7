import numpy as np
import pytest
import torch
from opensimplex.internals import _noise3

from anofpdm.study.rivals.simplex import random_permutations, simplex_noise


def permutations(count, seed=0):
    return random_permutations(count, torch.Generator().manual_seed(seed))


def by_opensimplex(permutation, x, y, z):
    """The same noise at one position, by an independent package."""
    perm = permutation.numpy().astype(np.int64)
    return _noise3(x, y, z, perm, perm % 24 * 3)


@pytest.mark.parametrize("t", [0, 137, 999])
def test_six_octaves_each_of_half_the_wavelength_and_four_fifths_of_the_amplitude(t):
    """That package omits some terms close to 0; all others agree up to rounding."""
    height, width, fields = 11, 13, permutations(2)
    expected = np.zeros((2, height, width))
    for (number, row, column), _ in np.ndenumerate(expected):
        for octave in range(6):
            place = (axis * 2**octave / 64 for axis in (column, row, t))
            expected[number, row, column] += 0.8**octave * by_opensimplex(fields[number], *place)
    errors = np.abs(simplex_noise(fields, t, height, width).numpy() - expected)
    assert expected.std() > 0.2  # not constant
    assert errors.max() < 2e-4
    assert np.quantile(errors, 0.8) < 5e-6


def test_a_field_is_bitwise_the_same_in_any_batch_and_by_one_level_for_all_or_one_for_each():
    fields, levels = permutations(6), torch.tensor([300, 0, 999, 3, 300, 7])
    together = simplex_noise(fields, levels, 12, 12)
    for number, t in enumerate(levels.tolist()):
        assert torch.equal(simplex_noise(fields[[number]], t, 12, 12)[0], together[number])
        assert torch.equal(simplex_noise(fields, t, 12, 12)[number], together[number])


@pytest.mark.gpu
@pytest.mark.parametrize(("height", "width"), [(128, 128), (20, 37)])
def test_simplex_noise_by_kernel_equals_plain_torch(height, width):
    fields = random_permutations(5, torch.Generator().manual_seed(0))
    levels = torch.tensor([0, 1, 64, 517, 999])
    plain = simplex_noise(fields, levels, height, width)  # on the CPU: plain torch
    ours = simplex_noise(fields.cuda(), levels.cuda(), height, width)
    torch.testing.assert_close(ours.cpu(), plain, rtol=0, atol=1e-4)
    assert torch.equal(simplex_noise(fields[3:4].cuda(), 517, height, width), ours[3:4])
