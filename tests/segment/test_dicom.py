"""DICOM studies as inputs, and segmented: results are NIfTI and DICOM."""

import nibabel as nib
import numpy as np
import pytest

from anofpdm.errors import CohortError, ScanError
from anofpdm.scans import read_scan
from anofpdm.segment.inputs import find_targets, preview_dicom
from anofpdm.segment.many import DEFAULT_FILES
from anofpdm.segment.outputs import DICOM_CAPTURE, DICOM_SEG
from tests import dicom_toys, toys
from tests.segment.known_model import BY_HEALTHY, known_model, save_dicom, segment_all, summary_of

SHAPE = (40, 40, 20)  # columns, rows, slices
MODALITIES = ("flair", "t2")


def study(folder):
    """A head of one value with a darker ball in it, axial, 1 x 1 x 2 mm; returns folder, ball and affine."""
    affine = np.diag([-1.0, -1.0, 2.0, 1.0])
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(SHAPE) - 1) / 2)
    inside, lesion = toys.ball(affine, SHAPE, (0, 0, 0), 17), toys.ball(affine, SHAPE, (6.0, -5.0, 4.0), 7.0)
    voxels = np.where(lesion, 50, np.where(inside, 100, 0)).astype(np.int16)
    origin = affine[:3, 3] * (-1, -1, 1)  # DICOM's axes point left and back
    planes = voxels.transpose(2, 1, 0)
    series = {"AX T2 FLAIR": planes, "AX T2": 2 * planes}  # the same after normalisation
    return save_dicom(folder, series, spacing=(1.0, 1.0), step=2.0, origin=origin), lesion, affine


@pytest.fixture
def anna(tmp_path):
    return study(tmp_path / "anna")[0]


def test_the_mask_of_a_study_overlays_its_lesion_as_nifti_and_dicom(tmp_path):
    """Results name the series, but no patient and no temporary file."""
    place, lesion, affine = study(tmp_path / "anna")
    files = (*DEFAULT_FILES, DICOM_SEG)
    words = (known_model(), dicom_toys.zipped(place, tmp_path / "anna.zip"), tmp_path / "out", files)
    report = segment_all(*words, **BY_HEALTHY)
    assert list(report.segmented) == ["anna"], report.failed
    folder = tmp_path / "out" / "anna"
    mask = nib.Nifti1Image.from_filename(folder / "mask.nii.gz")
    np.testing.assert_allclose(mask.affine, affine, atol=1e-4)
    assert toys.dice(np.asarray(mask.dataobj) > 0, lesion) > 0.85
    assert (folder / DICOM_SEG).is_file()
    assert (folder / DICOM_CAPTURE).is_file()
    flair = summary_of(folder)["inputs"]["flair"]
    assert (flair["series"], flair["file"]) == (3, "anna.zip, series 3 (AX T2 FLAIR)")
    for name in ("summary.json", "report.html", "slices.csv"):
        text = (folder / name).read_text()
        assert "Secret" not in text
        assert "anofpdm-" not in text.replace("anofpdm-ddim", "")
    assert list(segment_all(*words, **BY_HEALTHY).skipped) == ["anna"]


def test_a_study_is_converted_to_temporary_files_of_the_same_bytes_each_time(anna):
    (target,) = find_targets([str(anna)], MODALITIES)
    assert (target.subject.name, target.bids, target.subject.problem) == ("anna", False, None)
    contents = []
    for _ in range(2):  # a resumed run compares inputs by their bytes
        with target.open() as opened:
            scan = read_scan(opened.subject.images)
            contents.append([path.read_bytes() for path in opened.subject.images.values()])
            (space,) = {path.parent for path in opened.subject.images.values()}
        np.testing.assert_array_equal(scan.volumes[1], 2 * scan.volumes[0])
        np.testing.assert_allclose(scan.grid.affine, target.study.grid.affine, atol=1e-4)
        assert not space.exists()
    assert contents[0] == contents[1]


def test_an_invalid_study_does_not_affect_the_others(anna, tmp_path):
    bad, _, _ = study(tmp_path / "ben")
    next((bad / "s4").glob("*002.dcm")).unlink()
    first, second = find_targets([str(anna), str(bad)], MODALITIES)
    assert first.subject.problem is None
    assert "slices are missing" in second.subject.problem
    with pytest.raises(ScanError, match="slices are missing"):
        find_targets([str(bad)], MODALITIES)


def test_nifti_takes_precedence_over_dicom_unless_it_is_our_result(anna):
    for names, is_dicom in ((("out/anna/mask", "out/anna/anomaly_map"), True), (("anna_flair", "anna_t2"), False)):
        for name in names:
            toys.save(anna / f"{name}.nii.gz", toys.head())
        (target,) = find_targets([str(anna)], MODALITIES)
        assert (target.study is not None) == is_dicom


@pytest.mark.parametrize("path", [".", "../anna"])
def test_names_of_relative_paths(path, anna, monkeypatch):
    monkeypatch.chdir(anna)
    assert [target.subject.name for target in find_targets([path], MODALITIES)] == ["anna"]


def test_preview_and_chosen_series_need_dicom(anna, tmp_path):
    lines = preview_dicom([str(anna)], ("t2",))
    assert [line.split()[0] for line in lines] == [f"{anna}:", "series", "3", "4"]
    path = toys.save(tmp_path / "p_t1.nii.gz", toys.head())
    for place, message in ((path, "--preview shows the series of DICOM"), (tmp_path / "nowhere", "no such file")):
        with pytest.raises(CohortError, match=message):
            preview_dicom([str(place)], ("t1",))
    with pytest.raises(CohortError, match="applies to DICOM inputs only"):
        find_targets([str(path)], ("t1",), series={"t1": "9"})
