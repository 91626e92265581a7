"""Thin slices from thick ones, against the volume that the thick slices were made of."""

import numpy as np
import pytest

from anofpdm.raw.geometry import apply, coverage, resample
from anofpdm.raw.register import Head
from anofpdm.raw.thick import divide_slices, resample_series
from anofpdm.scans.grid import Grid
from tests import toys
from tests.raw.toy_studies import moved_head, random_rigid, thick_grid, tumour_phantom

MOVEMENT = random_rigid(np.random.default_rng(1), 8, 5)


@pytest.fixture(scope="module")
def original():
    phantom = tumour_phantom()
    grid = Grid.from_affine(phantom.mask.shape, phantom.affine)
    return Head(phantom.volumes["t1"], phantom.volumes["t1"] > 0, grid)


def scanned(slice_mm: float) -> Head:
    """With noise."""
    return moved_head("t1", MOVEMENT, thick_grid(MOVEMENT, (2.0, 2.0, slice_mm), (100, 115, int(180 / slice_mm))))


def test_restored_slices_are_closer_to_the_original_and_to_the_series(original):
    """Than linear interpolation."""
    thick, back = scanned(5.0), np.linalg.inv(MOVEMENT)
    linear = resample(thick.voxels, thick.grid, original.grid, MOVEMENT)
    restored = resample_series(thick, original.grid, MOVEMENT)
    assert restored.dtype == np.float32
    assert restored.min() >= 0
    errors = [np.sqrt(np.mean((thin - original.voxels)[original.brain] ** 2)) for thin in (restored, linear)]
    assert errors[0] < 0.9 * errors[1]
    means = [resample(thin, original.grid, thick.grid, back)[thick.brain] for thin in (restored, linear)]
    residuals = [np.abs(thick.voxels[thick.brain] - mean).mean() for mean in means]
    assert residuals[0] < 0.4 * residuals[1]


def test_thin_slices_are_interpolated(original):
    thin = scanned(2.5)
    linear = resample(thin.voxels, thin.grid, original.grid, MOVEMENT)
    np.testing.assert_array_equal(resample_series(thin, original.grid, MOVEMENT), linear)


@pytest.mark.parametrize(("slice_mm", "parts"), [(2.0, 3), (2.5, 2), (5.0 / 3, 3), (3.4, 1), (1.0, 5)])
def test_divided_slices_fill_the_thick_ones(slice_mm, parts):
    """Along the axial axis, here the first one."""
    grid = Grid.from_affine((4, 6, 7), MOVEMENT @ toys.affine_of("SLP", (5.0, 2.0, 3.0), (4, 6, 7)))
    divided = divide_slices(grid, slice_mm)
    assert divided.shape == (4 * parts, 6, 7)
    assert divided.spacing_mm[0] == pytest.approx(5.0 / parts)
    positions, expected = (apply(each.affine, np.argwhere(np.ones(each.shape))) for each in (divided, grid))
    np.testing.assert_allclose(positions.reshape(4, parts, 42, 3).mean(axis=1), expected.reshape(4, 42, 3), atol=1e-9)


@pytest.mark.parametrize("onto", ["divided", "inside", "partly outside"])
def test_a_uniform_head_stays_uniform_at_every_border(onto):
    """The brain reaches the first and the last slice; the new grid ends inside the head, or beyond it."""
    grid = thick_grid(MOVEMENT, (2.0, 2.0, 5.0), (30, 32, 12))
    head = Head(np.full(grid.shape, 100, np.float32), np.ones(grid.shape, bool), grid)
    shape = (20, 20, 30) if onto == "inside" else (70, 70, 70)
    target, matrix = thick_grid(np.eye(4), (1.0, 1.0, 1.0), shape), MOVEMENT
    if onto == "divided":
        target, matrix = divide_slices(grid, 2.0), np.eye(4)
    inside = coverage(grid, target, matrix)
    assert inside.any()
    np.testing.assert_allclose(resample_series(head, target, matrix)[inside], 100, atol=0.5)
