"""DICOM volumes: each voxel at the position given by the standard's equation, with the value in the file."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.uid import JPEGLSLossless, RLELossless
from scipy.spatial.transform import Rotation

from anofpdm.scans.dicom.read import read_study
from tests import dicom_toys
from tests.dicom_toys import AXIAL, OBLIQUE, Series

FLAIR = ("flair",)


def read_flair(path):
    return dict(read_study(path, FLAIR).volumes())["flair"]


def check_positions_and_values(series: Series, volume, values=None):
    """For all slices: position by an independent implementation of the equation, index by our affine, pixel value."""
    values = series.voxels if values is None else values
    slices, rows, columns = values.shape
    assert volume.voxels.shape == volume.grid.shape == (columns, rows, slices)
    corners = [(0, 0), (0, columns - 1), (rows - 1, 0), (rows // 2, columns // 3)]
    for number, (row, column) in ((number, corner) for number in range(slices) for corner in corners):
        place = np.linalg.inv(volume.grid.affine) @ (*series.world(column, row, number), 1)
        np.testing.assert_allclose(place, (column, row, place[2].round(), 1), atol=1e-5)
        assert volume.voxels[tuple(place[:3].round().astype(int))] == values[number, row, column]


@settings(max_examples=15)
@given(
    angles=st.tuples(*[st.floats(-180, 180)] * 3),
    origin=st.tuples(*[st.floats(-300, 300)] * 3),
    spacing=st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)),
    step=st.floats(0.5, 8) | st.floats(-8, -0.5),
)
def test_any_orientation(tmp_path_factory, angles, origin, spacing, step):
    cosines = AXIAL @ Rotation.from_euler("xyz", angles, degrees=True).as_matrix().T
    series = Series(dicom_toys.head(4, 5, 6), cosines=cosines, origin=origin, spacing=spacing, step=step)
    check_positions_and_values(series, read_flair(series.save(tmp_path_factory.mktemp("any"))))


def test_rounded_positions_give_a_regular_grid(tmp_path):
    series = Series(cosines=OBLIQUE)
    for name, number in zip("fahbclgkdije", range(12), strict=True):  # the order of files does not matter
        rounded = [f"{value:.2f}" for value in series.position(number)]
        dicom_toys.write(tmp_path / name, series.slice(number, ImagePositionPatient=rounded))
    volume = read_flair(tmp_path)
    np.testing.assert_array_equal(volume.voxels, series.voxels.transpose(2, 1, 0))
    for number in range(12):
        np.testing.assert_allclose((volume.grid.affine @ (0, 0, number, 1))[:3], series.world(0, 0, number), atol=0.01)


@pytest.mark.parametrize(
    ("dtype", "slopes", "read_as"),
    [("int16", [1], "int16"), ("uint16", [1], "uint16"), ("uint8", [1], "uint8"), ("int32", [1], "int32"),
     ("int16", [0.25, 2.0, 0.5, 1.0], "float32")],
)  # fmt: skip
def test_values_are_scaled_slice_by_slice_and_integers_unchanged_without_scale(dtype, slopes, read_as, tmp_path):
    voxels = dicom_toys.head(4, 6, 5).astype(dtype)
    if len(slopes) == 1:
        voxels[0, 0, :2] = np.iinfo(dtype).max, np.iinfo(dtype).min
    series, intercept = Series(voxels), len(slopes) - 1
    for number, slope in enumerate(np.broadcast_to(slopes, 4)):
        tags = series.slice(number, RescaleSlope=float(slope), RescaleIntercept=intercept or None)
        dicom_toys.write(tmp_path / f"{number}", tags)
    volume = read_flair(tmp_path)
    check_positions_and_values(series, volume, voxels * np.reshape(slopes, (-1, 1, 1)) + intercept)
    assert volume.voxels.dtype == read_as


@pytest.mark.parametrize("scale", [{}, {"RescaleSlope": 0.5}])
def test_monochrome1_is_inverted(scale, tmp_path):
    series = Series(dicom_toys.head(4, 6, 5, "uint16"), PhotometricInterpretation="MONOCHROME1", **scale)
    volume = read_flair(series.save(tmp_path))
    highest = series.voxels.max().astype(float)
    check_positions_and_values(series, volume, (highest - series.voxels) * (0.5 if scale else 1))
    assert volume.voxels.min() == 0


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless], ids=["rle", "jpeg-ls"])
def test_lossless_compression(syntax, tmp_path):
    series = Series(dicom_toys.head(3, 6, 5, "uint16"))
    for number in range(3):
        tags = series.slice(number)
        tags.compress(syntax, generate_instance_uid=False)
        dicom_toys.write(tmp_path / f"{number}.dcm", tags)
    check_positions_and_values(series, read_flair(tmp_path))


@pytest.mark.parametrize("shared", [True, False])
def test_frames_of_one_file_in_any_order_with_their_scaling(shared, tmp_path):
    series = Series(cosines=OBLIQUE, step=-2.5)
    order = np.random.default_rng(3).permutation(12).tolist()
    tags = series.enhanced(order, shared=shared)
    for number, frame in zip(order, tags.PerFrameFunctionalGroupsSequence, strict=True):
        scale = dicom_toys.item(RescaleSlope=number + 1, RescaleIntercept=0)
        frame.PixelValueTransformationSequence = [scale]
    path = dicom_toys.write(tmp_path / "one", tags)
    values = series.voxels * np.arange(1, 13)[:, None, None]
    for place in (tmp_path, path):
        check_positions_and_values(series, read_flair(place), values)


def test_several_series_from_a_folder_and_a_zip_are_the_same(tmp_path):
    made = {
        "flair": Series(dicom_toys.head(12, 16, 14, seed=1), SeriesNumber=2, SeriesDescription="t2_tirm_dark-fluid"),
        "t2": Series(dicom_toys.head(12, 16, 14, seed=2), SeriesNumber=5, SeriesDescription="T2 TSE"),
    }
    folder = tmp_path / "study"
    for name, series in made.items():
        series.save(folder / "deep" / name)
    (folder / "README.txt").write_text("a note from the hospital")
    (folder / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    (folder / ".hidden.dcm").write_bytes(b"x")
    for place in (folder, dicom_toys.zipped(folder, tmp_path / "study.ZIP")):
        volumes = dict(read_study(place, ("t2", "flair")).volumes())
        assert list(volumes) == ["t2", "flair"]
        for name, volume in volumes.items():
            check_positions_and_values(made[name], volume)


def test_dicom_libraries_are_imported_lazily(tmp_path):
    Series(dicom_toys.head(2, 4, 4)).save(tmp_path / "study")
    code = f"""
import sys
sys.modules.update(pydicom=None)  # which nibabel takes along wherever it is
import anofpdm.scans, anofpdm.segment.inputs as inputs, anofpdm.cli.main
assert "highdicom" not in sys.modules
assert not [name for name in sys.modules if name.startswith("anofpdm.scans.dicom.header")]
try:
    inputs.find_targets([{str(tmp_path / "study")!r}], ("flair",))
except anofpdm.errors.AnoFPDMError as problem:
    assert "pip install 'anofpdm[dicom]'" in str(problem)
else:
    raise SystemExit("not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
