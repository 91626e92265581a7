"""Masks for 3D Slicer and ITK-SNAP: other libraries read the voxels, places, name and colour that were written."""

import csv
import gzip

import nibabel as nib
import numpy as np
import pytest

from anofpdm.scans import Grid
from anofpdm.scans.lesion_label import LESION_NAME, LESION_RGB, label_table
from anofpdm.scans.seg_nrrd import write_seg_nrrd
from tests import toys

SHAPE = (13, 11, 9)
RAS = np.diag([-1.0, -1.0, 1.0])


def mask_on(affine: np.ndarray) -> np.ndarray:
    return toys.ball(affine, SHAPE, (3, -2, 1), 5)


def fields(path) -> tuple[dict[str, str], bytes]:
    """Header and voxels, by the definition of the format."""
    header, data = path.read_bytes().split(b"\n\n", 1)
    first, *lines = header.decode("ascii").splitlines()
    assert first == "NRRD0004"
    return dict(line.split(":=" if ":=" in line else ": ", 1) for line in lines), gzip.decompress(data)


@pytest.mark.parametrize("codes", toys.ORIENTATIONS[::5])
def test_simpleitk_reads_the_same_voxels_at_the_same_places(codes, tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    affine = toys.affine_of(codes, (0.9, 1.7, 3.1), (12, -7, 30), SHAPE)
    mask = mask_on(affine)
    write_seg_nrrd(tmp_path / "mask.seg.nrrd", mask, Grid.from_affine(SHAPE, affine))
    image = sitk.ReadImage(str(tmp_path / "mask.seg.nrrd"))
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image).transpose(2, 1, 0), mask)
    for voxel in ((0, 0, 0), (12, 0, 0), (3, 10, 8)):
        expected = nib.affines.apply_affine(affine, voxel)
        np.testing.assert_allclose(RAS @ image.TransformIndexToPhysicalPoint(voxel), expected, atol=1e-6)
    assert image.GetMetaData("Segment0_Name") == LESION_NAME


@pytest.mark.parametrize("codes", ["LPS", "RAS", "PIR"])
def test_slicerio_reads_segment_and_geometry(codes, tmp_path):
    slicerio = pytest.importorskip("slicerio")
    affine = toys.affine_of(codes, (0.9, 1.7, 3.1), (12, -7, 30), SHAPE)
    mask = mask_on(affine)
    write_seg_nrrd(tmp_path / "mask.seg.nrrd", mask, Grid.from_affine(SHAPE, affine))
    result = slicerio.read_segmentation(str(tmp_path / "mask.seg.nrrd"))
    np.testing.assert_allclose(np.diag([-1, -1, 1, 1]) @ result["ijkToLPS"], affine, atol=1e-12)
    np.testing.assert_array_equal(result["voxels"], mask)
    (segment,) = result["segments"]
    assert (segment["name"], segment["labelValue"], segment["layer"]) == (LESION_NAME, 1, 0)
    np.testing.assert_allclose(segment["color"], np.array(LESION_RGB) / 255, atol=1e-5)
    assert segment["terminology"]["type"] == ["SCT", "52988006", "Lesion"]


@pytest.mark.parametrize("codes", ["LPS", "SAR"])
def test_header(codes, tmp_path):
    affine = toys.affine_of(codes, (1.0, 2.0, 3.0), (12, -7, 30), SHAPE)
    mask = mask_on(affine)
    write_seg_nrrd(tmp_path / "mask.seg.nrrd", mask, Grid.from_affine(SHAPE, affine))
    header, data = fields(tmp_path / "mask.seg.nrrd")
    directions = np.array([eval(vector) for vector in header["space directions"].split()])  # one row an axis
    np.testing.assert_array_equal(RAS @ directions.T, affine[:3, :3])
    np.testing.assert_array_equal(RAS @ eval(header["space origin"]), affine[:3, 3])
    np.testing.assert_array_equal(np.frombuffer(data, np.uint8).reshape(SHAPE, order="F"), mask)
    extent = np.array(header["Segment0_Extent"].split(), dtype=int).reshape(3, 2)
    inside = np.argwhere(mask)
    np.testing.assert_array_equal(extent, np.column_stack([inside.min(axis=0), inside.max(axis=0)]))
    assert header["Segmentation_ContainedRepresentationNames"] == "Binary labelmap|"


def test_an_empty_mask(tmp_path):
    write_seg_nrrd(tmp_path / "empty.seg.nrrd", np.zeros(SHAPE, bool), Grid.from_affine(SHAPE, np.eye(4)))
    header, data = fields(tmp_path / "empty.seg.nrrd")
    assert header["Segment0_Extent"] == "0 -1 0 -1 0 -1"
    assert not any(data)


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
