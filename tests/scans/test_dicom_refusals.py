"""DICOM that is not a valid volume is refused in one line that names files, but never the patient."""

import logging
import zipfile

import numpy as np
import pytest
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEGLosslessSV1, generate_uid

import anofpdm.scans.dicom.source as limits
from anofpdm.errors import ScanError
from anofpdm.scans.dicom.read import preview, read_study
from tests import dicom_toys
from tests.dicom_toys import AXIAL, CORONAL, Series

FLAIR = ("flair",)


def read(path, modalities=FLAIR):
    return dict(read_study(path, modalities).volumes())


@pytest.fixture
def check_refused(caplog, recwarn, capfd):
    caplog.set_level(logging.DEBUG)

    def check(path, *words, modalities=FLAIR):
        with pytest.raises(ScanError) as caught:
            read(path, modalities)
        message = str(caught.value)
        assert "\n" not in message
        for word in (str(path), *words):
            assert word in message
        texts = [message, caplog.text, *(str(warning.message) for warning in recwarn), *capfd.readouterr()]
        assert not any(secret in text for secret in ("Secret", "Sarah", "QUARTZ", "19700101") for text in texts)

    return check


def test_missing_slices(tmp_path, check_refused):
    words = ("AX T2 FLAIR", "3 of its slices", "IM001.dcm", "IM004.dcm", "and in 1 more places", "2.50 mm apart")
    check_refused(Series().save(tmp_path, without=[2, 3, 7]), *words)


def test_a_copy_of_a_slice(tmp_path, check_refused):
    Series().save(tmp_path)
    (tmp_path / "copy.dcm").write_bytes((tmp_path / "IM003.dcm").read_bytes())
    check_refused(tmp_path, "two slices at one position", "IM003.dcm", "copy.dcm", "keep one")


def test_a_tilted_gantry_and_too_many_voxels(tmp_path, check_refused, monkeypatch):
    series = Series()
    series.step = np.array([0, 0.5, 2.5])
    check_refused(series.save(tmp_path), "11.3 degrees", "gantry")
    monkeypatch.setattr("anofpdm.scans.dicom.series.MAX_VOXELS", 100)
    check_refused(tmp_path, "more than a head scan has")


def test_a_single_slice(tmp_path, check_refused):
    Series().save(tmp_path, without=range(1, 12), SliceThickness=None)
    check_refused(tmp_path, "a single image", "IM000.dcm", "without SliceThickness", "give the folder")
    check_refused(tmp_path / "IM000.dcm", "a single image")


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (Series(cosines=AXIAL * 1.1), "not of length 1"),
        (Series(PhotometricInterpretation="RGB", SamplesPerPixel=3, PlanarConfiguration=0), "colour"),
        (Series(NumberOfFrames=2**31 - 1), "no position"),
        (Series(RescaleSlope=0, RescaleIntercept=0), "invalid rescale slope"),
    ],
)
def test_invalid_in_every_slice(made, word, tmp_path, check_refused):
    check_refused(made.save(tmp_path), word)


MIXED = ("AX T2 FLAIR", "mixed", "IM000.dcm", "IM008.dcm, IM009.dcm", "and 7 more")
INCOMPLETE = ("no position, orientation or pixel spacing", "IM006.dcm")


@pytest.mark.parametrize(
    ("numbers", "changes", "words"),
    [
        ([8, 9], {"EchoTime": 20}, ("2 echo times", *MIXED)),
        ([8, 9], {"EchoNumbers": 2}, ("2 echoes", *MIXED)),
        ([8, 9], {"ImageType": ["ORIGINAL", "PRIMARY", "P"]}, ("2 image types", *MIXED)),
        ([8, 9], {"TemporalPositionIdentifier": 2}, ("2 points in time", *MIXED)),
        ([8, 9], {"PixelSpacing": [1, 1]}, ("2 pixel spacings", *MIXED)),
        ([8, 9], {"Rows": 8, "Columns": 28}, ("2 sizes", "16 x 14 in IM000.dcm", "8 x 28 in IM008.dcm", *MIXED)),
        ([8, 9], {"ImageOrientationPatient": CORONAL.ravel().tolist()}, ("2 orientations", *MIXED)),
        ([8, 9], {"DiffusionBValue": 1000.0}, ("2 b-values", *MIXED)),
        ([6], {"ImagePositionPatient": None}, INCOMPLETE),
        ([6], {"PixelSpacing": None}, INCOMPLETE),
        ([4], {"ImagePositionPatient": [-10.6, 7, -10]}, ("not evenly spaced", "IM004.dcm", "mm from its position")),
    ],
)
def test_some_slices_of_a_series_that_differ(numbers, changes, words, tmp_path, check_refused):
    series = Series()
    series.save(tmp_path)
    for number in numbers:
        dicom_toys.write(tmp_path / f"IM{number:03d}.dcm", series.slice(number, **changes))
    check_refused(tmp_path, *words)


@pytest.mark.parametrize(
    ("group", "tag", "values", "words"),
    [
        ("MREcho", "EffectiveEchoTime", (20.0, 90.0), ("2 echo times", "20 in one.dcm frame 1", "90 in one.dcm fr")),
        ("MRImageFrameType", "FrameType", (["ORIGINAL", "M"], ["ORIGINAL", "P"]), ("2 image types",)),
        ("FrameContent", "TemporalPositionIndex", (1, 2), ("2 points in time",)),
        ("MRDiffusion", "DiffusionBValue", (0.0, 1000.0), ("2 b-values",)),
    ],
)
def test_two_volumes_in_one_enhanced_file(group, tag, values, words, tmp_path, check_refused):
    tags = Series().enhanced()
    for number, frame in enumerate(tags.PerFrameFunctionalGroupsSequence):
        setattr(frame, f"{group}Sequence", [dicom_toys.item(**{tag: values[number % 2]})])
    dicom_toys.write(tmp_path / "one.dcm", tags)
    check_refused(tmp_path, *words)


def test_two_studies(tmp_path, check_refused):
    Series().save(tmp_path / "one")
    Series(StudyInstanceUID=generate_uid()).save(tmp_path / "two")
    check_refused(tmp_path, "2 studies", "one/IM000.dcm", "two/IM000.dcm")


def test_missing_or_empty_folders(tmp_path, check_refused):
    check_refused(tmp_path / "nowhere", "no such file or folder")
    check_refused(tmp_path, "no DICOM image")
    (tmp_path / "notes.txt").write_text("x")
    check_refused(tmp_path, "notes.txt")


def test_a_file_with_a_dicom_name_only(tmp_path, check_refused):
    (Series().save(tmp_path) / "IM012.dcm").write_bytes(b"")
    check_refused(tmp_path, "IM012.dcm has a DICOM file name")


def test_truncation_at_any_byte_is_refused(tmp_path, check_refused):
    """The last slice, whose loss could not be detected by the slice spacing."""
    last = Series(dicom_toys.head(3, 8, 8)).save(tmp_path) / "IM002.dcm"
    whole = last.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 2]:
        last.write_bytes(whole[:length])
        check_refused(tmp_path, "IM002.dcm")


def test_damage_at_any_byte_is_refused_or_harmless(tmp_path, check_refused):
    file = Series(dicom_toys.head(3, 4, 4)).save(tmp_path) / "IM001.dcm"
    whole, generator = file.read_bytes(), np.random.default_rng(5)
    for _ in range(60):
        damaged = bytearray(whole)
        for place in generator.integers(128, len(whole) - 32, 3):
            damaged[place] = generator.integers(256)
        file.write_bytes(damaged)
        try:
            read(tmp_path)
        except ScanError:
            check_refused(tmp_path)


@pytest.mark.parametrize(
    ("syntax", "words"),
    [
        (JPEGLosslessSV1, ("JPEG Lossless", "pip install pylibjpeg", "gdcmconv")),
        (DeflatedExplicitVRLittleEndian, ("deflated", "dcmconv")),
    ],
)
def test_transfer_syntaxes_that_cannot_be_decoded(syntax, words, tmp_path, check_refused):
    series = Series(dicom_toys.head(2, 8, 8))
    for number in range(2):
        tags = series.slice(number)
        tags.file_meta.TransferSyntaxUID = syntax
        if syntax is JPEGLosslessSV1:
            tags["PixelData"].is_undefined_length = True
            tags.PixelData = bytes.fromhex("feff00e000000000feff00e004000000ffd8ffd9feffdde000000000")
        dicom_toys.write(tmp_path / f"{number}.dcm", tags)
    check_refused(tmp_path, "0.dcm", *words)


class TestZips:
    @pytest.fixture
    def study(self, tmp_path):
        return Series(dicom_toys.head(3, 8, 8)).save(tmp_path / "study")

    @pytest.fixture
    def packed(self, study, tmp_path):
        return dicom_toys.zipped(study, tmp_path / "a.zip")

    def test_paths_in_zip_names_are_not_followed(self, study, tmp_path):
        before = sorted(tmp_path.rglob("*"))
        for name in ("../../evil/", "/etc/", "C:\\windows\\", "a/../../../b/", "\n\x1b[31m"):
            packed = dicom_toys.zipped(study, tmp_path / "b.zip", before=name)
            assert read(packed)["flair"].voxels.shape == (8, 8, 3)
            packed.unlink()
        assert sorted(tmp_path.rglob("*")) == before

    def test_control_characters_in_names_are_replaced(self, tmp_path, check_refused):
        folder = Series(dicom_toys.head(5, 8, 8)).save(tmp_path / "study", without=[2])
        check_refused(dicom_toys.zipped(folder, tmp_path / "a.zip", before="\n\x1b[31m"), "??[31mIM001.dcm")

    def test_a_zip_bomb(self, packed, check_refused):
        with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros.dcm", bytes(limits.SMALL_ZIP_BYTES))
        check_refused(packed, "times its size")

    @pytest.mark.parametrize(
        ("place", "limit", "value", "word"),
        [
            ("packed", "MAX_FILES", 2, "more than a study has"),
            ("packed", "MAX_FILE_BYTES", 500, "more than a scan has"),
            ("packed", "MAX_ZIP_BYTES", 1000, "more than a study has"),
            ("study", "MAX_FILE_BYTES", 500, "more than a scan has"),
        ],
    )
    def test_limits(self, place, limit, value, word, request, check_refused, monkeypatch):
        path = request.getfixturevalue(place)
        monkeypatch.setattr(limits, limit, value)
        check_refused(path, word)

    @pytest.mark.parametrize(
        ("offset", "change", "words"),
        [
            (24, (300).to_bytes(4, "little"), ("damaged",)),  # only the declared size is decompressed
            (8, b"\1", ("is encrypted", "without a password")),
        ],
    )
    def test_a_wrong_directory_entry(self, offset, change, words, packed, check_refused):
        data = bytearray(packed.read_bytes())
        start = data.rindex(b"PK\x01\x02") + offset
        data[start : start + len(change)] = change
        packed.write_bytes(data)
        check_refused(packed, "IM002.dcm", *words)

    def test_duplicate_names(self, study, packed):
        with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.write(study / "IM000.dcm", "IM000.dcm")
        with pytest.raises(ScanError, match=r"IM000\.dcm appears several times"):
            read(packed)

    def test_damage(self, packed, check_refused):
        whole = packed.read_bytes()
        flipped = bytearray(whole)
        flipped[whole.index(b"IM000.dcm") + 200] ^= 0xFF
        damages = ((whole[: len(whole) // 2], "truncated"), (flipped, "damaged"), (b"no zip at all", "not a zip"))
        for data, word in damages:
            packed.write_bytes(data)
            check_refused(packed, word)


class TestGrids:
    def pair(self, tmp_path, **changes):
        Series().save(tmp_path / "flair")
        Series(SeriesNumber=4, SeriesDescription="T2 TSE", **changes).save(tmp_path / "t2")
        return tmp_path

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"origin": (-11, 7, -19)}, "1 mm apart"),
            ({"voxels": dicom_toys.head(12, 16, 16)}, "16 x 16 x 12 voxels, not 14 x 16 x 12"),
            ({"FrameOfReferenceUID": generate_uid()}, "different frames of reference"),
        ],
    )
    def test_series_on_different_grids(self, changes, word, tmp_path, check_refused):
        words = ("series 4 'T2 TSE'", "series 3 'AX T2 FLAIR'", word, "--raw auto", "resample")
        check_refused(self.pair(tmp_path, **changes), *words, modalities=("flair", "t2"))

    def test_rounding_errors_are_accepted(self, tmp_path):
        volumes = read(self.pair(tmp_path, origin=(-11.002, 7, -20)), ("flair", "t2"))
        np.testing.assert_array_equal(volumes["flair"].grid.affine, volumes["t2"].grid.affine)


def test_problems_of_unused_series_are_only_listed(tmp_path):
    Series().save(tmp_path / "flair")
    Series(SeriesNumber=1, SeriesDescription="T2 TSE").save(tmp_path / "t2", without=[4])
    assert read(tmp_path)["flair"].voxels.shape == (14, 16, 12)
    assert "cannot be used: 1 of its slices are missing" in preview(tmp_path, FLAIR)[1]
