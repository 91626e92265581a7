"""Masks for 3D Slicer and ITK-SNAP: other libraries read the voxels, places, name and colour that were written."""

import csv

import nibabel as nib
import numpy as np
import pytest

from anofpdm.scans import Grid
from anofpdm.scans.seg_nrrd import LESION_NAME, LESION_RGB, label_table, write_seg_nrrd
from tests import toys

SHAPE = (13, 11, 9)


def written(path, mask, affine):
    """As read by ITK: the image and its voxels [i, j, k]."""
    sitk = pytest.importorskip("SimpleITK")
    write_seg_nrrd(path / "mask.seg.nrrd", mask, Grid.from_affine(SHAPE, affine))
    image = sitk.ReadImage(str(path / "mask.seg.nrrd"))
    return image, sitk.GetArrayFromImage(image).transpose(2, 1, 0)


@pytest.mark.parametrize("codes", toys.ORIENTATIONS[::5])
def test_itk_reads_the_same_voxels_at_the_same_places(codes, tmp_path):
    affine = toys.affine_of(codes, (0.9, 1.7, 3.1), (12, -7, 30), SHAPE)
    mask = toys.ball(affine, SHAPE, (3, -2, 1), 5)
    image, voxels = written(tmp_path, mask, affine)
    np.testing.assert_array_equal(voxels, mask)
    for voxel in ((0, 0, 0), (12, 0, 0), (3, 10, 8)):
        expected = nib.affines.apply_affine(np.diag([-1, -1, 1, 1]) @ affine, voxel)  # ITK counts in LPS+
        np.testing.assert_allclose(image.TransformIndexToPhysicalPoint(voxel), expected, atol=1e-6)
    inside = np.argwhere(mask)
    extent = np.column_stack([inside.min(axis=0), inside.max(axis=0)]).ravel()
    assert image.GetMetaData("Segment0_Extent") == " ".join(map(str, extent))
    assert image.GetMetaData("Segment0_Name") == LESION_NAME
    colour = np.array(image.GetMetaData("Segment0_Color").split(), dtype=float)
    np.testing.assert_allclose(colour, np.array(LESION_RGB) / 255, atol=1e-5)
    assert image.GetMetaData("Segmentation_ContainedRepresentationNames") == "Binary labelmap|"
    assert "~SCT^52988006^Lesion~" in image.GetMetaData("Segment0_Tags")


def test_an_empty_mask(tmp_path):
    image, voxels = written(tmp_path, np.zeros(SHAPE, bool), np.eye(4))
    assert image.GetMetaData("Segment0_Extent") == "0 -1 0 -1 0 -1"
    assert not voxels.any()


def test_a_mask_of_another_shape_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not fill"):
        write_seg_nrrd(tmp_path / "x.seg.nrrd", np.zeros((2, 3, 4)), Grid.from_affine(SHAPE, np.eye(4)))


def test_label_table():
    """Eight columns; names are quoted."""
    lines = [line for line in label_table().decode().splitlines() if not line.startswith("#")]
    rows = list(csv.reader(lines, delimiter=" ", skipinitialspace=True))
    assert [len(row) for row in rows] == [8, 8]
    assert [int(row[0]) for row in rows] == [0, 1]
    assert (tuple(map(int, rows[1][1:4])), rows[1][-1]) == (LESION_RGB, LESION_NAME)
