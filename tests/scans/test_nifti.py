import gzip
import math
import os
import struct
import tracemalloc
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anofpdm.errors import ScanError, ScanWarning
from anofpdm.scans import read_volume, write_nifti
from tests import toys

SHAPE = (24, 24, 20)


def check_refused(path, *words):
    """Refused in one line that names the file and contains each of `words`."""
    with pytest.raises(ScanError) as caught:
        read_volume(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def changed(path, offset: int, form: str, *values):
    """The same uncompressed file with other bytes at `offset`."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, offset, *values)
    path.write_bytes(data)
    return path


@pytest.fixture
def plain(tmp_path):
    return toys.save(tmp_path / "scan.nii", toys.head())


@pytest.fixture
def packed(tmp_path):
    return toys.save(tmp_path / "scan.nii.gz", toys.head())


class TestReads:
    @pytest.mark.parametrize("name", ["scan.nii", "scan.nii.gz"])
    @pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8", ">i2", ">f4"])
    def test_voxels_as_nibabel_reads_them(self, tmp_path, name, dtype):
        voxels = (toys.head() / 3).astype(dtype)
        volume = read_volume(toys.save(tmp_path / name, voxels))
        expected = nib.Nifti1Image.from_filename(tmp_path / name)
        np.testing.assert_allclose(volume.voxels, expected.get_fdata(), rtol=1e-6)
        np.testing.assert_array_equal(volume.grid.affine, expected.affine)

    def test_scaled_integers(self, plain):
        changed(plain, 112, "<2f", 0.25, -3.5)
        expected = nib.Nifti1Image.from_filename(plain).get_fdata()
        np.testing.assert_allclose(read_volume(plain).voxels, expected, rtol=1e-6)
        assert expected.min() < 0

    def test_header_extensions_are_skipped_and_offset_zero_means_the_default(self, plain, tmp_path):
        image = nib.Nifti1Image(toys.head(), toys.affine_of(shape=SHAPE))
        image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"a note" * 50))
        nib.save(image, tmp_path / "extended.nii.gz")
        for path in (tmp_path / "extended.nii.gz", changed(plain, 108, "<f", 0)):
            np.testing.assert_array_equal(read_volume(path).voxels, toys.head())

    def test_compression_is_detected_by_content_also_in_several_members_with_padding(self, plain):
        data, path = plain.read_bytes(), plain.with_name("other.nii.gz")
        for content in (data, gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + b"\0" * 700):
            path.write_bytes(content)
            np.testing.assert_array_equal(read_volume(path).voxels, toys.head())

    @pytest.mark.parametrize("codes", [(1, 1), (1, 0)])
    def test_missing_or_extra_signs(self, tmp_path, codes):
        """qfac 0 means 1, and voxel sizes have no sign: nibabel and the standard agree."""
        path = toys.save(tmp_path / "scan.nii", toys.head(), toys.affine_of("RAS", shape=SHAPE), codes=codes)
        changed(path, 76, "<4f", 0, -1, 1, 1)
        np.testing.assert_allclose(read_volume(path).grid.affine, nib.Nifti1Image.from_filename(path).affine)

    def test_no_orientation_gives_a_warning(self, tmp_path):
        path = toys.save(tmp_path / "scan.nii", toys.head(), codes=(0, 0))
        with pytest.warns(ScanWarning, match="no orientation"):
            volume = read_volume(path)
        np.testing.assert_array_equal(volume.voxels, toys.head())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _path: None, ("no such file",)),
        (Path.mkdir, ("a folder",)),
        (Path.touch, ("empty",)),
        (lambda path: path.write_text("This is not a scan, though it is long enough." * 20), ("not a NIfTI file",)),
        (lambda path: toys.save(path, toys.head()[:, 12, 10], toys.affine_of()), ("a single row",)),
        (lambda path: toys.save(path, np.stack([toys.head()] * 3, axis=-1)), ("4D", "24 x 24 x 20 x 3")),
        (lambda path: toys.save(path, np.zeros(SHAPE, np.int16)), ("every voxel is 0",)),
        (lambda path: toys.save(path, np.zeros(SHAPE, [(name, "u1") for name in "RGB"])), ("colour",)),
    ],
    ids=range(8),
)
def test_what_is_no_scan_is_refused(tmp_path, make, words):
    make(tmp_path / "scan.nii.gz")
    check_refused(tmp_path / "scan.nii.gz", *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(344, "4s", b"ni1\0")], (".hdr/.img",)),
        ([(344, "4s", b"n+2\0")], ("magic",)),
        ([(0, ">i", 348)], ()),  # a length in the other byte order
        ([(70, "<h", 999)], ("999",)),
        ([(40, "<4h", 3, 0, 24, 20)], ("empty",)),
        ([(40, "<4h", 3, -24, 24, 20)], ("damaged",)),
        ([(40, "<4h", 9, 24, 24, 20)], ("9 dimensions",)),
        ([(40, "<4h", 3, 512, 512, 512), (70, "<h", 64)], ("1,024 MiB",)),
        *(([(108, "<f", offset)], ("begin at byte",)) for offset in (math.nan, 1e30)),
        ([(112, "<2f", math.inf, 0)], ("scales voxels",)),
        ([(123, "B", 1)], ("metres",)),
    ],
    ids=range(12),
)
def test_damaged_headers_are_refused(plain, changes, words):
    for change in changes:
        changed(plain, *change)
    check_refused(plain, *words)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e300])
def test_non_finite_values_are_refused_with_count_and_position(tmp_path, bad):
    voxels = toys.head().astype(np.float64)  # 1e300 overflows in float32
    voxels[3, 4, 5] = voxels[7, 0, 1] = bad
    check_refused(toys.save(tmp_path / "scan.nii.gz", voxels), "2 voxels", "(7, 0, 1)")  # first in the file


@settings(max_examples=40)
@given(share=st.floats(0, 1, exclude_max=True), is_packed=st.booleans())
def test_truncated_anywhere(tmp_path_factory, share, is_packed):
    path = toys.save(tmp_path_factory.mktemp("cut") / ("scan.nii.gz" if is_packed else "scan.nii"), toys.head())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    check_refused(path)


@settings(max_examples=60)
@given(st.data())
def test_a_wrong_byte_in_the_compressed_stream_never_gives_wrong_voxels(tmp_path_factory, data):
    """Refused, or, if the byte has no effect (a time stamp, padding bits), equal voxels."""
    path = toys.save(tmp_path_factory.mktemp("flip") / "scan.nii.gz", toys.head())
    whole = bytearray(path.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    try:
        volume = read_volume(path)
    except ScanError as problem:
        assert str(path) in str(problem)
    else:
        np.testing.assert_array_equal(volume.voxels, toys.head())


@pytest.mark.parametrize(
    ("size", "rest", "words", "mib"),
    [
        ((32767, 32767, 32767), bytes(30 << 20), ("32767 x 32767 x 32767", "more than a head scan has"), 20),
        ((24, 24, 20), bytes(30 << 20), ("more data than its header declares",), 20),  # is not decompressed
        ((256, 256, 64), np.full((256, 256, 64), np.nan, "<f4").tobytes(), ("NaN",), 50),
        ((256, 256, 64), b"", ("truncated",), 50),
    ],
    ids=["too many voxels", "gzip bomb", "all NaN", "truncated"],
)
def test_refusals_need_little_memory(tmp_path, plain, size, rest, words, mib):
    changed(plain, 40, "<4h", 3, *size)
    header = changed(plain, 70, "<h", 16).read_bytes()[:352]
    path = tmp_path / "scan.nii.gz"
    path.write_bytes(gzip.compress(header, 1) + gzip.compress(rest, 1))
    tracemalloc.start()
    check_refused(path, *words)
    assert tracemalloc.get_traced_memory()[1] < mib << 20
    tracemalloc.stop()


def with_forms(path, sform, qform=None):
    image = nib.Nifti1Image(toys.head(), None)
    image.header.set_sform(sform, code=1)
    if qform is not None:
        image.header.set_qform(qform, code=1)
    nib.save(image, path)
    return path


def altered(column, value, row=slice(None)):
    affine = toys.affine_of(shape=SHAPE)
    affine[row, column] = value
    return affine


@pytest.mark.parametrize(
    ("sform", "qform", "words"),
    [
        (altered(1, 0.1, row=0), None, ("sheared", "84.3 degrees")),
        (altered(1, toys.affine_of(shape=SHAPE)[:, 0]), None, ("singular",)),
        (altered(1, 0), None, ("singular",)),
        (altered(1, np.nan, row=1), None, ("NaN",)),
        (toys.affine_of("LPS", shape=SHAPE), toys.affine_of("RPS", shape=SHAPE), ("disagree",)),
        (toys.affine_of(spacing=(300, 1, 1), shape=SHAPE), None, ("300 x 1 x 1 mm",)),
    ],
    ids=range(6),
)
def test_ambiguous_or_invalid_geometry_is_refused(tmp_path, sform, qform, words):
    check_refused(with_forms(tmp_path / "scan.nii.gz", sform, qform), *words)


def test_small_differences_are_accepted(tmp_path):
    """Noise in directions is not shear, and forms half a millimetre apart agree."""
    sform = toys.affine_of(shape=SHAPE)
    sform[:3, :3] += 1e-5 * np.random.default_rng(0).standard_normal((3, 3))
    qform = toys.affine_of(shape=SHAPE)
    qform[2, 3] += 0.5
    np.testing.assert_allclose(read_volume(with_forms(tmp_path / "a.nii", sform, qform)).grid.affine, sform)


class TestWrites:
    @settings(max_examples=30)
    @given(
        st.sampled_from(toys.ORIENTATIONS),
        st.tuples(*[st.floats(0.5, 3.0)] * 3),
        st.tuples(*[st.floats(-30, 30)] * 3),
        st.sampled_from([(1, 1), (2, 4), (1, 0), (0, 3)]),
    )
    def test_results_have_the_geometry_of_the_input(self, tmp_path_factory, codes, spacing, tilt, forms):
        folder = tmp_path_factory.mktemp("write")
        affine = toys.affine_of(codes, spacing, tilt, SHAPE)
        source = read_volume(toys.save(folder / "scan.nii.gz", toys.head(), affine, codes=forms))
        write_nifti(folder / "mask.nii.gz", source.voxels > 0, source.grid)
        before, after = (
            nib.Nifti1Image.from_filename(folder / "scan.nii.gz"),
            nib.Nifti1Image.from_filename(folder / "mask.nii.gz"),
        )
        assert after.shape == before.shape
        np.testing.assert_array_equal(after.affine, before.affine)
        for field in ("qform_code", "sform_code", "xyzt_units", "srow_x", "srow_y", "srow_z", "pixdim", "quatern_b"):
            np.testing.assert_array_equal(after.header[field], before.header[field])

    @pytest.mark.parametrize(("kind", "axes"), [(nib.Nifti1Image, (1,)), (nib.Nifti2Image, ())])
    def test_trailing_axes_and_the_version_are_those_of_the_input(self, tmp_path, kind, axes):
        nib.save(kind(toys.head().reshape(*SHAPE, *axes), toys.affine_of(shape=SHAPE)), tmp_path / "scan.nii.gz")
        volume = read_volume(tmp_path / "scan.nii.gz")
        np.testing.assert_array_equal(volume.voxels, toys.head())
        write_nifti(tmp_path / "mask.nii.gz", np.zeros(SHAPE), volume.grid)
        written = kind.from_filename(tmp_path / "mask.nii.gz")
        assert isinstance(nib.load(tmp_path / "mask.nii.gz"), kind)
        assert written.shape == (*SHAPE, *axes)
        assert not read_volume(tmp_path / "mask.nii.gz", allow_constant=True).voxels.any()

    @pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.float32, np.float16, np.int64])
    def test_values_round_trip_unscaled(self, tmp_path, dtype):
        image = nib.Nifti1Image(toys.head(), toys.affine_of(shape=SHAPE))
        image.header.set_slope_inter(3.0, 7.0)
        nib.save(image, tmp_path / "scan.nii")
        grid = read_volume(tmp_path / "scan.nii").grid
        values = (np.random.default_rng(0).random(SHAPE) * 200).astype(dtype)
        write_nifti(tmp_path / "map.nii.gz", values, grid)
        back = nib.Nifti1Image.from_filename(tmp_path / "map.nii.gz")
        np.testing.assert_array_equal(np.asarray(back.dataobj), values)
        assert np.isnan(back.header["scl_slope"]) or back.header["scl_slope"] == 1

    def test_equal_input_gives_equal_bytes_and_no_temporary_files(self, tmp_path):
        for name in ("a.nii.gz", "b.nii.gz"):
            write_nifti(tmp_path / name, toys.head(), toys.affine_of(shape=SHAPE))
        assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.nii.gz", "b.nii.gz"]

    def test_a_wrong_shape_is_a_programming_error(self, tmp_path):
        grid = read_volume(toys.save(tmp_path / "scan.nii", toys.head())).grid
        with pytest.raises(ValueError, match="do not fill"):
            write_nifti(tmp_path / "map.nii", np.zeros((2, 2, 2)), grid)


def test_endless_zero_padding(packed):
    os.truncate(packed, 1 << 40)
    check_refused(packed, "more than a head scan has")


def test_odd_header_codes_print_nothing(tmp_path, plain, capfd):
    """nibabel fixes them and would log it."""
    grid = read_volume(changed(plain, 252, "<2h", 99, 1)).grid
    write_nifti(tmp_path / "mask.nii.gz", np.ones(SHAPE, np.uint8), grid)
    assert capfd.readouterr() == ("", "")
    np.testing.assert_array_equal(nib.Nifti1Image.from_filename(tmp_path / "mask.nii.gz").affine, grid.affine)
