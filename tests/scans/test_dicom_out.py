"""Written DICOM: the mask has the same voxels at the same positions as the NIfTI mask."""

import io

import numpy as np
import pydicom
import pytest
from PIL import Image

from anofpdm import __version__
from anofpdm.errors import ScanError
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.dicom.read import read_study
from anofpdm.scans.dicom.seg import write_capture, write_seg
from anofpdm.scans.seg_nrrd import LESION_NAME
from tests import dicom_toys
from tests.dicom_toys import AXIAL, OBLIQUE, PATIENT, SAGITTAL, Series


def rebuilt(seg: pydicom.Dataset, affine: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The mask of a SEG on a NIfTI grid, from its functional groups alone; voxels agree to 0.01 mm."""
    shared = seg.SharedFunctionalGroupsSequence[0]
    x, y = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, dtype=float).reshape(2, 3)
    down, across = map(float, shared.PixelMeasuresSequence[0].PixelSpacing)
    frames = seg.pixel_array.reshape(-1, seg.Rows, seg.Columns)
    mask, back = np.zeros(shape, dtype=bool), np.linalg.inv(affine)
    for frame, group in zip(frames, seg.PerFrameFunctionalGroupsSequence, strict=True):
        corner = np.array(group.PlanePositionSequence[0].ImagePositionPatient, dtype=float)
        for row, column in [*np.argwhere(frame), (0, 0), (seg.Rows - 1, seg.Columns - 1)]:
            world = (corner + x * across * column + y * down * row) * (-1, -1, 1)
            index = np.rint((back @ (*world, 1))[:3]).astype(int)
            assert np.linalg.norm((affine @ (*index, 1))[:3] - world) < 0.01
            mask[tuple(index)] |= bool(frame[row, column])
    return mask


def random_mask(study):
    mask = np.random.default_rng(0).random(study.reference.shape) > 0.7
    mask[..., [0, 5, -1]] = False  # some slices are empty
    return mask


def read_back(write, *arguments, folder):
    write(folder / "written.dcm", *arguments)
    return pydicom.dcmread(folder / "written.dcm")


def picture() -> bytes:
    """The right part is transparent."""
    buffer, pixels = io.BytesIO(), np.zeros((5, 7, 4), dtype=np.uint8)
    pixels[:, :4] = (200, 100, 50, 255)
    Image.fromarray(pixels, "RGBA").save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture(params=["axial", "sagittal down", "oblique", "enhanced", "enhanced, nothing shared", "zip"])
def study(request, tmp_path):
    folder = tmp_path / "study"
    cosines = {"axial": AXIAL, "sagittal down": SAGITTAL}.get(request.param, OBLIQUE)
    series = Series(cosines=cosines, step=-2.5 if request.param == "sagittal down" else 2.5)
    if request.param.startswith("enhanced"):
        folder.mkdir()
        order = np.random.default_rng(1).permutation(12).tolist()
        dicom_toys.write(folder / "one.dcm", series.enhanced(order, shared="nothing" not in request.param))
    else:
        series.save(folder)
    place = dicom_toys.zipped(folder, tmp_path / "study.zip") if request.param == "zip" else folder
    return read_study(place, ("flair",))


@pytest.fixture
def axial(tmp_path):
    return read_study(Series().save(tmp_path / "study"), ("flair",))


@pytest.mark.parametrize("lesion", [True, False])
def test_the_mask_equals_the_nifti_mask(lesion, study, tmp_path):
    """A healthy scan has all its frames."""
    mask = random_mask(study) & lesion
    write_nifti(tmp_path / "mask.nii.gz", mask, study.grid)
    nifti = read_volume(tmp_path / "mask.nii.gz", allow_constant=True)
    seg = read_back(write_seg, mask, study, folder=tmp_path)
    np.testing.assert_array_equal(rebuilt(seg, nifti.grid.affine, nifti.grid.shape), nifti.voxels > 0)
    assert len(seg.PerFrameFunctionalGroupsSequence) == (mask.any(axis=(0, 1)).sum() or 12)


def test_attributes_and_source_slices(axial, tmp_path):
    seg = read_back(write_seg, random_mask(axial), axial, folder=tmp_path)
    slices = [pydicom.dcmread(path) for path in (tmp_path / "study").iterdir()]
    places = {tags.SOPInstanceUID: list(tags.ImagePositionPatient) for tags in slices}
    for group in seg.PerFrameFunctionalGroupsSequence:
        source = group.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID
        assert places[source] == list(group.PlanePositionSequence[0].ImagePositionPatient)
    (segment,) = seg.SegmentSequence
    assert segment.SegmentLabel == LESION_NAME == "Lesion, suspected (AnoFPDM, research use)"
    assert segment.SegmentAlgorithmType == "AUTOMATIC"
    algorithm = segment.SegmentationAlgorithmIdentificationSequence[0]
    assert (algorithm.AlgorithmName, algorithm.AlgorithmVersion) == ("AnoFPDM", __version__)
    assert segment.SegmentedPropertyTypeCodeSequence[0].CodeValue == "52988006"  # SNOMED CT: lesion
    assert segment.AnatomicRegionSequence[0].CodeValue == "12738006"  # brain
    assert (seg.Modality, seg.StudyInstanceUID, seg.FrameOfReferenceUID) == ("SEG", dicom_toys.STUDY, dicom_toys.SPACE)
    assert {keyword: seg[keyword].value for keyword in PATIENT} == PATIENT
    assert seg.SeriesInstanceUID != axial.reference.label.uid


def test_a_capture_in_the_patients_study(axial, tmp_path):
    made = read_back(write_capture, picture(), axial, folder=tmp_path)
    assert made.SOPClassUID.name == "Secondary Capture Image Storage"
    assert {keyword: made[keyword].value for keyword in PATIENT} == PATIENT
    assert (made.StudyInstanceUID, made.StudyID, made.AccessionNumber) == (dicom_toys.STUDY, "S1", "A1")
    assert (made.PhotometricInterpretation, made.BurnedInAnnotation) == ("RGB", "YES")
    assert (made.pixel_array[:, :4] == (200, 100, 50)).all()
    assert (made.pixel_array[:, 4:] == 255).all()


@pytest.mark.parametrize(
    "changes",
    [
        dict.fromkeys(["PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyID", "StudyDate"]),
        {"PatientSex": "?", "PatientBirthDate": "around 1970", "StudyTime": "noon"},
        {"SliceThickness": None, "SpacingBetweenSlices": 99.0},
        {"SpecificCharacterSet": "ISO_IR 100", "PatientName": "Müller^Jürgen"},
        {"SpecificCharacterSet": ["", "ISO 2022 IR 87"], "PatientName": "Yamada^Tarou=山田^太郎"},
    ],
    ids=["nothing known", "invalid values", "no thickness", "umlauts", "japanese"],
)
def test_files_are_written_for_odd_sources_and_nothing_is_logged(changes, tmp_path, caplog, recwarn):
    with pydicom.config.disable_value_validation():
        study = read_study(Series(**changes).save(tmp_path / "study"), ("flair",))
    recwarn.clear()
    mask = random_mask(study)
    seg = read_back(write_seg, mask, study, folder=tmp_path)
    capture = read_back(write_capture, picture(), study, folder=tmp_path)
    assert not caplog.records
    assert not recwarn.list
    np.testing.assert_array_equal(rebuilt(seg, study.grid.affine, mask.shape), mask)
    assert seg.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SpacingBetweenSlices == 2.5
    for made in (seg, capture):
        assert str(made.PatientName) == (changes.get("PatientName", PATIENT["PatientName"]) or "")


def test_several_multi_frame_files(tmp_path):
    (tmp_path / "study").mkdir()
    series = Series()
    for name, order in {"a": [0, 2, 4], "b": [1, 3, 5]}.items():
        dicom_toys.write(tmp_path / "study" / name, series.enhanced(order))
    study = read_study(tmp_path / "study", ("flair",))
    voxels = dict(study.volumes())["flair"].voxels
    np.testing.assert_array_equal(voxels, series.voxels[:6].transpose(2, 1, 0))
    with pytest.raises(ScanError, match="NIfTI mask"):
        write_seg(tmp_path / "a.dcm", voxels > 0, study)


def test_no_frame_of_reference_and_a_mask_of_another_shape_are_refused(axial, tmp_path):
    without = read_study(Series(FrameOfReferenceUID=None).save(tmp_path / "without"), ("flair",))
    with pytest.raises(ScanError, match="frame of reference"):
        write_seg(tmp_path / "a.dcm", random_mask(without), without)
    with pytest.raises(ValueError, match="does not fill"):
        write_seg(tmp_path / "a.dcm", np.zeros((2, 2, 2)), axial)


def test_results_next_to_the_scan_are_not_read_as_scans(axial, tmp_path):
    write_seg(tmp_path / "study" / "mask_seg.dcm", random_mask(axial), axial)
    write_capture(tmp_path / "study" / "report_capture.dcm", picture(), axial)
    again = read_study(tmp_path / "study", ("flair",))
    assert again.reference.frames == axial.reference.frames
    assert [line.split(" ignored: ")[1] for line in again.notes] == ["OT, not MR"]
