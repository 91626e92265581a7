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


def read(path, modalities=FLAIR, override=None):
    return read_study(path, modalities, override).volumes()


@pytest.fixture
def check_refused(caplog, recwarn, capfd):
    caplog.set_level(logging.DEBUG)

    def check(path, *words, modalities=FLAIR, override=None):
        with pytest.raises(ScanError) as caught:
            read(path, modalities, override)
        message = str(caught.value)
        assert str(path) in message
        assert "\n" not in message
        for word in words:
            assert word in message
        texts = [message, caplog.text, *(str(one.message) for one in recwarn), *capfd.readouterr()]
        assert not any(secret in text for secret in ("Secret", "Sarah", "QUARTZ", "19700101") for text in texts)

    return check


class TestSlices:
    def test_a_missing_slice(self, tmp_path, check_refused):
        Series().save(tmp_path, without=[5])
        check_refused(tmp_path, "AX T2 FLAIR", "1 of its slices are missing", "IM004.dcm", "IM006.dcm", "2.50 mm apart")

    def test_several_missing_slices(self, tmp_path, check_refused):
        Series().save(tmp_path, without=[2, 3, 7])
        check_refused(tmp_path, "3 of its slices", "IM001.dcm", "IM004.dcm", "and in 1 more places")

    def test_a_copy_of_a_slice(self, tmp_path, check_refused):
        Series().save(tmp_path)
        (tmp_path / "copy.dcm").write_bytes((tmp_path / "IM003.dcm").read_bytes())
        check_refused(tmp_path, "two slices at one position", "IM003.dcm", "copy.dcm", "keep one")

    def test_a_misplaced_slice(self, tmp_path, check_refused):
        series = Series()
        series.save(tmp_path)
        place = np.add(series.position(4), (0, 0, 0.3)).tolist()
        dicom_toys.write(tmp_path / "IM004.dcm", series.slice(4, ImagePositionPatient=place))
        check_refused(tmp_path, "not evenly spaced", "IM004.dcm")

    def test_a_slice_shifted_sideways(self, tmp_path, check_refused):
        series = Series()
        series.save(tmp_path)
        place = np.add(series.position(4), (0.4, 0, 0)).tolist()
        dicom_toys.write(tmp_path / "IM004.dcm", series.slice(4, ImagePositionPatient=place))
        check_refused(tmp_path, "IM004.dcm", "mm from its position")

    def test_a_tilted_gantry(self, tmp_path, check_refused):
        series = Series()
        series.step = np.array([0, 0.5, 2.5])
        check_refused(series.save(tmp_path), "11.3 degrees", "gantry")

    def test_a_single_slice(self, tmp_path, check_refused):
        Series().save(tmp_path, without=range(1, 12), SliceThickness=None)
        check_refused(tmp_path, "a single image", "IM000.dcm", "without SliceThickness", "give the folder")
        check_refused(tmp_path / "IM000.dcm", "a single image")

    @pytest.mark.parametrize("lost", ["ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"])
    def test_missing_geometry(self, lost, tmp_path, check_refused):
        series = Series()
        series.save(tmp_path)
        tags = series.slice(6)
        delattr(tags, lost)
        dicom_toys.write(tmp_path / "IM006.dcm", tags)
        check_refused(tmp_path, "no position, orientation or pixel spacing", "IM006.dcm")

    def test_direction_cosines_not_of_unit_length(self, tmp_path, check_refused):
        check_refused(Series(cosines=AXIAL * 1.1).save(tmp_path), "not of length 1")


class TestMixed:
    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"EchoTime": 20}, "2 echo times"),
            ({"EchoNumbers": 2}, "2 echoes"),
            ({"ImageType": ["ORIGINAL", "PRIMARY", "P"]}, "2 image types"),
            ({"TemporalPositionIdentifier": 2}, "2 points in time"),
            ({"PixelSpacing": [1, 1]}, "2 pixel spacings"),
            ({"ImageOrientationPatient": CORONAL.ravel().tolist()}, "2 orientations"),
            ({"DiffusionBValue": 1000.0}, "2 b-values"),
        ],
    )
    def test_two_volumes_in_one_series(self, changes, word, tmp_path, check_refused):
        series = Series()
        series.save(tmp_path)
        for number in (8, 9):
            dicom_toys.write(tmp_path / f"IM{number:03d}.dcm", series.slice(number, **changes))
        check_refused(tmp_path, "AX T2 FLAIR", "mixed", word, "IM000.dcm", "IM008.dcm, IM009.dcm", "and 7 more")

    def test_two_sizes_in_one_series(self, tmp_path, check_refused):
        series, other = Series(), Series(dicom_toys.head(12, 8, 8))
        other.uid = series.uid
        series.save(tmp_path)
        other.save(tmp_path, "other")
        check_refused(tmp_path, "mixed", "2 sizes", "16 x 14 in IM000.dcm", "8 x 8 in other000.dcm")

    def test_echoes_as_frames(self, tmp_path, check_refused):
        tags = Series().enhanced()
        for number, frame in enumerate(tags.PerFrameFunctionalGroupsSequence):
            frame.MREchoSequence = [dicom_toys.item(EffectiveEchoTime=20.0 + 70 * (number % 2))]
        dicom_toys.write(tmp_path / "one.dcm", tags)
        check_refused(tmp_path, "2 echo times", "20 in one.dcm frame 1", "90 in one.dcm frame 2")

    def test_two_studies(self, tmp_path, check_refused):
        Series().save(tmp_path / "one")
        Series(StudyInstanceUID=generate_uid()).save(tmp_path / "two")
        check_refused(tmp_path, "2 studies", "one/IM000.dcm", "two/IM000.dcm")

    def test_colours(self, tmp_path, check_refused):
        changes = {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3, "PlanarConfiguration": 0}
        check_refused(Series(**changes).save(tmp_path), "colour")


class TestFiles:
    def test_a_huge_count_of_frames(self, tmp_path, check_refused):
        Series().save(tmp_path, NumberOfFrames=2**31 - 1)
        check_refused(tmp_path, "no position")

    def test_missing_or_empty_folders(self, tmp_path, check_refused):
        check_refused(tmp_path / "nowhere", "no such file or folder")
        (tmp_path / "empty").mkdir()
        check_refused(tmp_path / "empty", "no DICOM image")
        (tmp_path / "empty" / "notes.txt").write_text("x")
        check_refused(tmp_path / "empty", "notes.txt")

    def test_a_file_with_a_dicom_name_only(self, tmp_path, check_refused):
        Series().save(tmp_path)
        (tmp_path / "IM012.dcm").write_bytes(b"")
        check_refused(tmp_path, "IM012.dcm has a DICOM file name")

    def test_truncation_at_any_byte_is_refused(self, tmp_path, check_refused):
        """The last slice, whose loss could not be detected by the slice spacing."""
        Series(dicom_toys.head(3, 8, 8)).save(tmp_path)
        last = tmp_path / "IM002.dcm"
        whole = last.read_bytes()
        for length in [*range(0, len(whole), 37), len(whole) - 2]:
            last.write_bytes(whole[:length])
            check_refused(tmp_path, "IM002.dcm")

    def test_damage_at_any_byte_is_refused_or_harmless(self, tmp_path, check_refused):
        Series(dicom_toys.head(3, 4, 4)).save(tmp_path)
        file = tmp_path / "IM001.dcm"
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

    def test_compression_without_an_installed_decoder(self, tmp_path, check_refused):
        series = Series(dicom_toys.head(2, 8, 8))
        for number in range(2):
            tags = series.slice(number)
            tags.file_meta.TransferSyntaxUID = JPEGLosslessSV1
            tags["PixelData"].is_undefined_length = True
            tags.PixelData = bytes.fromhex("feff00e000000000feff00e004000000ffd8ffd9feffdde000000000")
            dicom_toys.write(tmp_path / f"{number}.dcm", tags)
        check_refused(tmp_path, "0.dcm", "JPEG Lossless", "pip install pylibjpeg", "gdcmconv")

    def test_deflated_transfer_syntax(self, tmp_path, check_refused):
        series = Series(dicom_toys.head(2, 8, 8))
        tags = series.slice(0)
        tags.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        dicom_toys.write(tmp_path / "0.dcm", tags)
        check_refused(tmp_path, "0.dcm", "deflated", "dcmconv")

    def test_too_many_voxels(self, tmp_path, check_refused, monkeypatch):
        monkeypatch.setattr("anofpdm.scans.dicom.series.MAX_VOXELS", 100)
        check_refused(Series().save(tmp_path), "more than a head scan has")

    def test_a_rescale_slope_of_zero(self, tmp_path, check_refused):
        check_refused(Series(RescaleSlope=0, RescaleIntercept=0).save(tmp_path), "invalid rescale slope")


class TestZips:
    @pytest.fixture
    def study(self, tmp_path):
        return Series(dicom_toys.head(3, 8, 8)).save(tmp_path / "study")

    def test_paths_in_zip_names_are_not_followed(self, study, tmp_path):
        before = sorted(tmp_path.rglob("*"))
        for number, name in enumerate(("../../evil/", "/etc/", "C:\\windows\\", "a/../../../b/", "\n\x1b[31m")):
            packed = dicom_toys.zipped(study, tmp_path / f"{number}.zip", before=name)
            assert read(packed)["flair"].voxels.shape == (8, 8, 3)
            packed.unlink()
        assert sorted(tmp_path.rglob("*")) == before

    def test_control_characters_in_names_are_replaced(self, tmp_path, check_refused):
        Series(dicom_toys.head(5, 8, 8)).save(tmp_path / "study", without=[2])
        check_refused(dicom_toys.zipped(tmp_path / "study", tmp_path / "a.zip", before="\n\x1b[31m"), "??[31mIM001.dcm")

    def test_a_zip_bomb(self, study, tmp_path, check_refused):
        packed = dicom_toys.zipped(study, tmp_path / "bomb.zip")
        with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros.dcm", bytes(limits.SMALL_ZIP_BYTES))
        check_refused(packed, "times its size")

    def test_a_zip_in_a_zip_is_not_opened(self, study, tmp_path, check_refused):
        inner = dicom_toys.zipped(study, tmp_path / "inner.zip")
        with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
            archive.write(inner, "inner.zip")
        check_refused(tmp_path / "outer.zip", "no DICOM image", "inner.zip")

    @pytest.mark.parametrize(
        ("limit", "value", "word"),
        [
            ("MAX_FILES", 2, "more than a study has"),
            ("MAX_FILE_BYTES", 500, "more than a scan has"),
            ("MAX_ZIP_BYTES", 1000, "more than a study has"),
        ],
    )
    def test_limits(self, limit, value, word, study, tmp_path, check_refused, monkeypatch):
        monkeypatch.setattr(limits, limit, value)
        check_refused(dicom_toys.zipped(study, tmp_path / "a.zip"), word)

    def test_a_large_file_in_a_folder(self, study, check_refused, monkeypatch):
        monkeypatch.setattr(limits, "MAX_FILE_BYTES", 500)
        check_refused(study, "more than a scan has")

    def test_a_wrong_declared_size(self, study, tmp_path, check_refused):
        """Only the declared size is decompressed, so that the checksum differs."""
        packed = dicom_toys.zipped(study, tmp_path / "a.zip")
        data = bytearray(packed.read_bytes())
        entry = data.rindex(b"PK\x01\x02")
        data[entry + 24 : entry + 28] = (300).to_bytes(4, "little")
        packed.write_bytes(data)
        check_refused(packed, "IM002.dcm", "damaged")

    def test_encrypted(self, study, tmp_path, check_refused):
        packed = dicom_toys.zipped(study, tmp_path / "a.zip")
        data = bytearray(packed.read_bytes())
        data[data.rindex(b"PK\x01\x02") + 8] |= 1
        packed.write_bytes(data)
        check_refused(packed, "IM002.dcm is encrypted", "without a password")

    def test_duplicate_names(self, study, tmp_path):
        packed = dicom_toys.zipped(study, tmp_path / "a.zip")
        with zipfile.ZipFile(packed, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.write(study / "IM000.dcm", "IM000.dcm")
        with pytest.raises(ScanError, match="appears 2 times"):
            read(packed)

    def test_damage(self, study, tmp_path, check_refused):
        packed = dicom_toys.zipped(study, tmp_path / "a.zip")
        whole = packed.read_bytes()
        packed.write_bytes(whole[: len(whole) // 2])
        check_refused(packed, "truncated")
        data = bytearray(whole)
        data[whole.index(b"IM000.dcm") + 200] ^= 0xFF
        packed.write_bytes(data)
        check_refused(packed, "IM000.dcm", "damaged")
        packed.write_bytes(b"no zip at all")
        check_refused(packed, "not a zip")


class TestGrids:
    def pair(self, tmp_path, **changes):
        Series().save(tmp_path / "flair")
        place = {key: changes.pop(key) for key in ("origin", "voxels", "cosines") if key in changes}
        Series(**place, SeriesNumber=4, SeriesDescription="T2 TSE", **changes).save(tmp_path / "t2")
        return tmp_path

    @pytest.mark.parametrize(
        ("changes", "word"),
        [
            ({"origin": (-11, 7, -19)}, "1 mm apart"),
            ({"voxels": dicom_toys.head(12, 16, 16)}, "16 x 16 x 12 voxels, not 14 x 16 x 12"),
            ({"cosines": CORONAL}, "mm apart"),
            ({"FrameOfReferenceUID": generate_uid()}, "different frames of reference"),
        ],
    )
    def test_series_on_different_grids(self, changes, word, tmp_path, check_refused):
        words = ("series 4 'T2 TSE'", "series 3 'AX T2 FLAIR'", word, "--raw auto", "resample")
        check_refused(self.pair(tmp_path, **changes), *words, modalities=("flair", "t2"))

    def test_rounding_errors_are_accepted(self, tmp_path):
        found = read(self.pair(tmp_path, origin=(-11.002, 7, -20)), ("flair", "t2"))
        np.testing.assert_array_equal(found["flair"].grid.affine, found["t2"].grid.affine)


def test_problems_of_unused_series_are_only_listed(tmp_path):
    Series().save(tmp_path / "flair")
    Series(SeriesNumber=1, SeriesDescription="T2 TSE").save(tmp_path / "t2", without=[4])
    assert read(tmp_path)["flair"].voxels.shape == (14, 16, 12)
    first, second = preview(tmp_path, FLAIR).rows
    assert first.modality is None
    assert "cannot be used: 1 of its slices are missing" in first.note
    assert second.modality == "flair"
