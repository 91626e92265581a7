import numpy as np
import pytest
import torch
from opensimplex.internals import _noise3

from anofpdm.network.simplex import random_permutations, simplex_noise, simplex_values


def permutations(count, seed=0):
    return random_permutations(count, torch.Generator().manual_seed(seed))


def by_opensimplex(permutation, x, y, z):
    """The same noise at one position, by an independent package."""
    perm = permutation.numpy().astype(np.int64)
    return _noise3(x, y, z, perm, perm % 24 * 3)


def test_one_octave_is_opensimplex():
    """That package omits some terms close to 0; all others agree up to rounding."""
    places = np.random.default_rng(0).uniform(-300, 300, (4000, 3))
    fields = permutations(2)
    ours = simplex_values(fields, *(torch.from_numpy(axis.copy()) for axis in places.T)).numpy()
    theirs = np.array([[by_opensimplex(field, *place) for place in places] for field in fields])
    errors = np.abs(ours - theirs)
    assert theirs.std() > 0.2  # not constant
    assert errors.max() < 1e-4
    assert np.quantile(errors, 0.97) < 2e-6


@pytest.mark.parametrize("t", [0, 137, 999])
def test_six_octaves_each_of_half_the_wavelength_and_four_fifths_of_the_amplitude(t):
    height, width, fields = 5, 7, permutations(2)
    expected = np.zeros((2, height, width))
    for number, field in enumerate(fields):
        for row in range(height):
            for column in range(width):
                wavelength, strength = 64.0, 1.0
                for _ in range(6):
                    place = column / wavelength, row / wavelength, t / wavelength
                    expected[number, row, column] += strength * by_opensimplex(field, *place)
                    wavelength, strength = wavelength / 2, strength * 0.8
    np.testing.assert_allclose(simplex_noise(fields, t, height, width).numpy(), expected, rtol=0, atol=2e-4)


def test_one_level_for_all_equals_one_for_each():
    fields, levels = permutations(4), [0, 3, 250, 999]
    each = simplex_noise(fields, torch.tensor(levels), 20, 24)
    for number, t in enumerate(levels):
        torch.testing.assert_close(simplex_noise(fields, t, 20, 24)[number], each[number], rtol=0, atol=3e-6)


def test_permutations_are_valid_and_distinct():
    drawn = permutations(50)
    assert torch.equal(drawn.sort(dim=1).values, torch.arange(256).expand(50, -1))
    assert len(drawn.unique(dim=0)) == 50
    counts = torch.bincount(permutations(4000)[:, 0], minlength=256)  # uniform
    assert counts.float().var() / counts.float().mean() == pytest.approx(1, abs=0.35)


def test_fields_are_independent_and_smooth():
    noise = simplex_noise(permutations(30), 300, 48, 48)
    alike = np.corrcoef(noise.flatten(1).numpy())[~np.eye(30, dtype=bool)]
    assert np.abs(alike).max() < 0.9
    assert abs(alike.mean()) < 0.05
    near = np.corrcoef(noise[:, :, 1:].flatten(), noise[:, :, :-1].flatten())[0, 1]
    assert near > 0.5  # plain noise would have 0
    above = simplex_noise(permutations(30), 301, 48, 48)
    assert np.corrcoef(noise.flatten(), above.flatten())[0, 1] > 0.5  # smooth along t as well


@pytest.mark.parametrize("level", [300, torch.full((30,), 300)], ids=["one level", "a level each"])
@pytest.mark.parametrize("part", [slice(0, 1), slice(29, 30), slice(3, 5), slice(8, 25)])
def test_a_field_is_bitwise_the_same_in_any_batch(level, part):
    fields = permutations(30)
    alone = simplex_noise(fields[part], level if isinstance(level, int) else level[part], 12, 12)
    assert torch.equal(alone, simplex_noise(fields, level, 12, 12)[part])
