"""Registration against known movements, transforms against SimpleITK, resampling against nibabel."""

import nibabel as nib
import nibabel.processing
import numpy as np
import pytest

from anofpdm.raw.geometry import average_blocks, coverage, encode_transform, resample
from anofpdm.raw.register import register_rigid
from anofpdm.scans.grid import Grid
from tests.raw.toy_studies import mean_error_mm, moved_head, random_rigid, thick_grid

SERIES = ((1.8, 1.8, 4.0), (104, 112, 36))


@pytest.fixture(scope="module")
def reference():
    return moved_head("flair", np.eye(4), thick_grid(np.eye(4), (1.5, 1.5, 5.0), (120, 140, 28)))


def test_a_known_movement_is_recovered(reference):
    """Thick slices of different spacing; the grid of the series does not follow the patient's movement."""
    movement = random_rigid(np.random.default_rng(30), 30.0, 40.0)
    grid = thick_grid(movement @ random_rigid(np.random.default_rng(1), 6.0, 4.0), *SERIES)
    registration = register_rigid(reference, moved_head("t2", movement, grid))
    assert not registration.kept
    assert mean_error_mm(registration.matrix, movement, reference) <= 1.0


def test_correct_headers_are_kept(reference):
    oblique = thick_grid(random_rigid(np.random.default_rng(2), 8.0, 5.0), *SERIES)
    registration = register_rigid(reference, moved_head("t1", np.eye(4), oblique))
    assert registration.kept
    np.testing.assert_array_equal(registration.matrix, np.eye(4))


def test_transforms_are_read_by_itk(tmp_path):
    itk = pytest.importorskip("SimpleITK")
    matrix = random_rigid(np.random.default_rng(4), 20.0, 30.0)
    path = tmp_path / "t2_to_flair.txt"
    path.write_bytes(encode_transform(matrix))
    x, y, z = 10.0, -20.0, 30.0  # RAS+
    expected = matrix @ [x, y, z, 1]
    moved = itk.ReadTransform(str(path)).TransformPoint((-x, -y, z))  # ITK counts in LPS+
    np.testing.assert_allclose([-moved[0], -moved[1], moved[2]], expected[:3], atol=1e-9)


def test_resampling_equals_that_of_nibabel():
    rng = np.random.default_rng(0)
    voxels = rng.random((20, 22, 9), dtype=np.float32)
    grid = Grid.from_affine(voxels.shape, random_rigid(rng, 20.0, 5.0) @ np.diag([-1.0, 1.1, 2.5, 1.0]))
    onto = Grid.from_affine((18, 16, 12), random_rigid(rng, 5.0, 3.0) @ np.diag([-1.0, 1.2, 2.0, 1.0]))
    image = nib.Nifti1Image(voxels, grid.affine)
    expected = nib.processing.resample_from_to(image, (onto.shape, onto.affine), order=1).get_fdata()
    inner = coverage(grid, onto, np.eye(4))
    assert inner.sum() > 200
    inner &= expected > 0  # at the border of the grid, nibabel's values are 0 and ours fade to 0
    np.testing.assert_allclose(resample(voxels, grid, onto, np.eye(4))[inner], expected[inner], atol=1e-5)


def test_a_thick_slice_is_the_mean_of_thin_ones():
    thin = np.random.default_rng(0).random((6, 5, 12), dtype=np.float32)
    grid = Grid.from_affine(thin.shape, np.diag([4.0, 4.0, 1.0, 1.0]))
    means, thick = average_blocks(thin, grid, 4.0)
    np.testing.assert_allclose(means, thin.reshape(6, 5, 3, 4).mean(axis=3), atol=1e-6)
    np.testing.assert_allclose(resample(thin, grid, thick, np.eye(4)), means, atol=1e-5)
