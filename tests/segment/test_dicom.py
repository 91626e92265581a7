"""A DICOM study, segmented and written as NIfTI and DICOM."""

import nibabel as nib
import numpy as np

from anofpdm.segment.many import FILES, OF_DICOM
from anofpdm.segment.outputs import DICOM_CAPTURE, DICOM_SEG
from tests import dicom_toys, toys
from tests.segment.known_model import BY_HEALTHY, known_model, save_dicom, segment_all, summary_of

SHAPE = (40, 40, 20)  # columns, rows, slices


def study(folder):
    """A head of one value with a darker ball in it, axial, 1 x 1 x 2 mm."""
    affine = np.diag([-1.0, -1.0, 2.0, 1.0])
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(SHAPE) - 1) / 2)
    inside, lesion = toys.ball(affine, SHAPE, (0, 0, 0), 17), toys.ball(affine, SHAPE, (6.0, -5.0, 4.0), 7.0)
    voxels = np.where(lesion, 50, np.where(inside, 100, 0)).astype(np.int16)
    origin = affine[:3, 3] * (-1, -1, 1)  # DICOM's axes point left and back
    planes = voxels.transpose(2, 1, 0)
    series = {"AX T2 FLAIR": planes, "AX T2": 2 * planes}  # the same after normalisation
    return save_dicom(folder, series, spacing=(1.0, 1.0), step=2.0, origin=origin), lesion, affine


def test_the_mask_of_a_study_overlays_its_lesion_as_nifti_and_dicom(tmp_path):
    place, lesion, affine = study(tmp_path / "anna")
    words = (known_model(), dicom_toys.zipped(place, tmp_path / "anna.zip"), tmp_path / "out", OF_DICOM)
    report = segment_all(*words, **BY_HEALTHY)
    assert list(report.segmented) == ["anna"], report.failed
    mask = nib.Nifti1Image.from_filename(tmp_path / "out" / "anna" / "mask.nii.gz")
    np.testing.assert_allclose(mask.affine, affine, atol=1e-4)
    assert toys.dice(np.asarray(mask.dataobj) > 0, lesion) > 0.85
    assert (tmp_path / "out" / "anna" / DICOM_SEG).is_file()
    assert (tmp_path / "out" / "anna" / DICOM_CAPTURE).is_file()
    assert list(segment_all(*words, **BY_HEALTHY).skipped) == ["anna"]


def test_results_name_the_series_but_no_patient_and_no_temporary_file(tmp_path):
    place, _, _ = study(tmp_path / "anna")
    segment_all(known_model(), place, tmp_path / "out", FILES, **BY_HEALTHY)
    folder = tmp_path / "out" / "anna"
    flair = summary_of(folder)["inputs"]["flair"]
    assert flair["series"] == 3
    assert "anna, series 3 (AX T2 FLAIR)" in flair["file"]
    for name in ("summary.json", "report.html", "slices.csv"):
        text = (folder / name).read_text()
        assert "Secret" not in text
        assert "anofpdm-" not in text.replace("anofpdm-ddim", "")
    assert not (folder / DICOM_SEG).exists()
