"""Brain extraction on a head whose brain is known: the average brain inside a drawn skull and scalp."""

import importlib.util

import numpy as np
import pytest
from scipy import ndimage

from anofpdm.errors import ScanError
from anofpdm.raw import brain
from anofpdm.raw.linknet import predict_brain
from anofpdm.raw.template import load_template
from anofpdm.scans.grid import Grid
from tests.toys import dice

needs_deepbet = pytest.mark.skipif(importlib.util.find_spec("deepbet") is None, reason="deepbet is not installed")


@needs_deepbet
def test_the_brain_is_found_in_any_orientation():
    pytest.importorskip("nilearn")
    template = load_template(2)
    outside = ndimage.distance_transform_edt(~template.brain, 2)
    head = np.where((outside > 8) & (outside < 15), 0.9, template.voxels)
    head = np.where((outside > 0) & (outside <= 3), 0.15, head).astype(np.float32)
    flipped = (slice(None, None, -1), slice(None), slice(None))  # L, S, A
    affine = template.grid.affine[:, [0, 2, 1, 3]] * [-1, 1, 1, 1]
    affine[:3, 3] += template.grid.affine[:3, 0] * (head.shape[0] - 1)
    voxels, truth = (array[flipped].transpose(0, 2, 1) for array in (head, template.brain))
    extracted = brain.extract_brain(voxels, Grid.from_affine(voxels.shape, affine), "head.nii.gz")
    assert dice(extracted, truth) > 0.95


@needs_deepbet
def test_our_network_is_that_of_the_file():
    """Same weights, computed by torch's own 3D convolutions from the program in the file."""
    import torch

    path = brain.weights_folder() / brain.FINDER[0]
    x = torch.nn.functional.avg_pool3d(
        torch.rand(1, 1, 64, 64, 64, generator=torch.Generator().manual_seed(0)), 5, 1, 2
    )
    with torch.inference_mode():
        expected = torch.jit.load(path).eval()(x)[0, 1]
        torch.testing.assert_close(predict_brain(brain.load_networks()[0], x), expected, atol=2e-3, rtol=0)


@needs_deepbet
def test_without_a_head_no_brain_is_found():
    grid = Grid.from_affine((32, 32, 16), np.diag([4.0, 4.0, 8.0, 1.0]))
    flat = np.zeros(grid.shape, np.float32)
    flat[0, 0, 0] = 1
    with pytest.raises(ScanError, match="no brain found"):
        brain.extract_brain(flat, grid, "bottle.nii.gz")
