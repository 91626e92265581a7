"""Thin slices from thick ones, against the volume that the thick slices were made of."""

import numpy as np
import pytest
from scipy.interpolate import interp1d

from anofpdm.raw.geometry import apply, coverage, resample, whole_voxels
from anofpdm.raw.register import Head
from anofpdm.raw.thick import ROUNDS, crop_to_brain, crop_to_grid, divide_slices, resample_series, restore
from anofpdm.scans.grid import Grid
from tests import toys
from tests.raw.worlds import moved_head, random_rigid, thick_grid, tumour_phantom


@pytest.fixture(scope="module")
def original():
    phantom = tumour_phantom()
    grid = Grid.from_affine(phantom.mask.shape, phantom.affine)
    return Head(phantom.volumes["t1"], phantom.volumes["t1"] > 0, grid)


@pytest.fixture(scope="module")
def movement():
    return random_rigid(np.random.default_rng(1), 8, 5)


def scanned(movement: np.ndarray, slice_mm: float) -> Head:
    """With noise."""
    return moved_head("t1", movement, thick_grid(movement, (2.0, 2.0, slice_mm), (100, 115, int(180 / slice_mm))))


def test_closer_to_the_original_than_linear_interpolation(original, movement):
    thick = scanned(movement, 5.0)
    linear = resample(thick.voxels, thick.grid, original.grid, movement)
    restored = resample_series(thick, original.grid, movement)
    errors = [np.sqrt(np.mean((one - original.voxels)[original.brain] ** 2)) for one in (linear, restored)]
    assert errors[1] < 0.9 * errors[0]
    assert restored.dtype == np.float32
    assert restored.min() >= 0


def test_means_over_thick_slices_are_those_of_the_series(original, movement):
    thick = scanned(movement, 5.0)
    linear = resample(thick.voxels, thick.grid, original.grid, movement)
    residuals = [
        np.abs(thick.voxels - resample(thin, original.grid, thick.grid, np.linalg.inv(movement)))[thick.brain].mean()
        for thin in (linear, resample_series(thick, original.grid, movement))
    ]
    assert residuals[1] < 0.4 * residuals[0]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_restored_along_their_axis_have_the_means_of_the_series(original, axis):
    """By iterations on the volume itself: interpolate, compare means, add what is missing."""
    thin = np.moveaxis(original.voxels[:, :, :80].astype(float), 2, axis)
    thick = block_means(thin, axis, 5)
    expected = interpolated(thick, axis, 5)
    before = np.abs(block_means(expected, axis, 5) - thick).mean()
    for _ in range(ROUNDS):
        expected = expected + interpolated(thick - block_means(expected, axis, 5), axis, 5)
    found = restore(thick, axis, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-2)
    assert np.abs(block_means(found, axis, 5) - thick).mean() < 0.1 * before


def block_means(voxels, axis, parts):
    moved = np.moveaxis(voxels, axis, -1)
    return np.moveaxis(moved.reshape(*moved.shape[:-1], -1, parts).mean(axis=-1), -1, axis)


def interpolated(thick, axis, parts):
    """By scipy, the outermost slices continued."""
    count = thick.shape[axis]
    centres = np.clip((np.arange(count * parts) + 0.5) / parts - 0.5, 0, count - 1)
    return interp1d(np.arange(count), thick, axis=axis)(centres)


@pytest.mark.parametrize("first", [(-3, 2, 0), (4, -2, 1), (0, 0, 0), (50, 0, 0)])
def test_shifts_by_whole_voxels_are_those_of_interpolation(first):
    """Against a shift that is off by a thousandth of a voxel, which is interpolated."""
    thick = scanned(np.eye(4), 5.0)
    head = Head(thick.voxels[:40, :50], thick.brain[:40, :50], Grid.from_affine((40, 50, 36), thick.grid.affine))
    affine, near = head.grid.affine.copy(), head.grid.affine.copy()
    affine[:3, 3], near[:3, 3] = (apply(affine, np.array(first) + off) for off in (0.0, 1e-3))
    onto, beside = (Grid.from_affine((45, 45, 30), one) for one in (affine, near))
    assert whole_voxels(head.grid, onto, np.eye(4)).tolist() == list(first)
    assert whole_voxels(head.grid, beside, np.eye(4)) is None
    exact, interpolated = (resample(head.voxels, head.grid, one, np.eye(4)) for one in (onto, beside))
    np.testing.assert_allclose(exact, interpolated, atol=0.01 * head.voxels.max())


def test_thin_slices_are_interpolated(original, movement):
    thin = scanned(movement, 2.5)
    linear = resample(thin.voxels, thin.grid, original.grid, movement)
    np.testing.assert_array_equal(resample_series(thin, original.grid, movement), linear)


def test_slices_are_divided_along_the_axial_axis_whatever_the_order():
    affine = toys.affine_of("SLP", (5.0, 2.0, 3.0), (4, 6, 7))
    divided = divide_slices(Grid.from_affine((4, 6, 7), affine), 2.0)
    assert divided.shape == (12, 6, 7)
    first, last = apply(divided.affine, np.array([[1.0, 0, 0], [10.0, 5, 6]]))  # the middle parts of two slices
    np.testing.assert_allclose([first, last], apply(affine, np.array([[0.0, 0, 0], [3.0, 5, 6]])), atol=1e-9)


@pytest.mark.parametrize(("slice_mm", "parts"), [(2.0, 3), (2.5, 2), (5.0 / 3, 3), (3.4, 1), (1.0, 5)])
def test_divided_slices_fill_the_thick_ones(slice_mm, parts, movement):
    grid = thick_grid(movement, (2.0, 2.0, 5.0), (6, 7, 4))
    divided = divide_slices(grid, slice_mm)
    assert divided.shape == (6, 7, 4 * parts)
    numbers = np.stack(np.meshgrid(*map(np.arange, divided.shape), indexing="ij"), axis=-1).reshape(-1, 3)
    positions = apply(divided.affine, numbers.astype(float)).reshape(6, 7, 4, parts, 3)
    centres = np.stack(np.meshgrid(*map(np.arange, grid.shape), indexing="ij"), axis=-1).reshape(-1, 3)
    expected = apply(grid.affine, centres.astype(float)).reshape(6, 7, 4, 3)
    np.testing.assert_allclose(positions.mean(axis=3), expected, atol=1e-9)
    assert np.linalg.norm(divided.affine[:3, 2]) == pytest.approx(5.0 / parts)


def test_the_box_around_the_brain_keeps_positions(movement):
    thick = scanned(movement, 5.0)
    box, grid = crop_to_brain(thick)
    voxels = thick.voxels[box]
    assert voxels.shape == grid.shape
    assert voxels.size < thick.voxels.size
    there = resample(voxels, grid, thick.grid, np.eye(4))
    np.testing.assert_allclose(there[thick.brain], thick.voxels[thick.brain], rtol=1e-4)
    again, same = crop_to_grid(thick.grid, grid, np.eye(4))
    assert all(a.start <= b.start < b.stop <= a.stop for a, b in zip(again, box, strict=True))
    assert same.shape == tuple(side.stop - side.start for side in again)


@pytest.mark.parametrize("onto", ["divided", "inside", "partly outside"])
def test_a_uniform_head_stays_uniform_at_every_border(onto, movement):
    """The brain reaches the first and the last slice; the new grid ends inside the head, or beyond it."""
    grid = thick_grid(movement, (2.0, 2.0, 5.0), (30, 32, 12))
    head = Head(np.full(grid.shape, 100, np.float32), np.ones(grid.shape, bool), grid)
    if onto == "divided":
        target, matrix = divide_slices(grid, 2.0), np.eye(4)
    else:
        shape = (20, 20, 30) if onto == "inside" else (70, 70, 70)
        target, matrix = thick_grid(np.eye(4), (1.0, 1.0, 1.0), shape), movement
    inside = coverage(grid, target, matrix)
    assert inside.any()
    np.testing.assert_allclose(resample_series(head, target, matrix)[inside], 100, atol=0.5)
