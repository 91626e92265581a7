"""DICOM as an input of segmentation."""

import numpy as np
import pytest

from anofpdm.errors import CohortError, ScanError
from anofpdm.scans import read_scan
from anofpdm.segment.inputs import find_targets, preview_dicom
from tests import dicom_toys, toys
from tests.segment.known_model import save_dicom

MODALITIES = ("flair", "t2")


def study(folder):
    first, second = (dicom_toys.head(5, 8, 8, seed=seed) for seed in (3, 4))
    return save_dicom(folder, {"AX T2 FLAIR": first, "AX T2": second})


@pytest.fixture
def anna(tmp_path):
    return study(tmp_path / "anna")


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_study_is_converted_to_temporary_files_of_the_same_bytes_each_time(kind, anna, tmp_path):
    place = dicom_toys.zipped(anna, tmp_path / "anna.zip") if kind == "zip" else anna
    (target,) = find_targets([str(place)], MODALITIES)
    assert (target.subject.name, target.bids, target.subject.problem) == ("anna", False, None)
    contents = []
    for _ in range(2):  # a resumed run compares inputs by their bytes
        with target.open() as opened:
            subject = opened.subject
            assert (subject.name, list(subject.images)) == ("anna", ["flair", "t2"])
            scan = read_scan(subject.images)
            contents.append([path.read_bytes() for path in subject.images.values()])
            (space,) = {path.parent for path in subject.images.values()}
        np.testing.assert_array_equal(scan.volumes[1], dicom_toys.head(5, 8, 8, seed=4).transpose(2, 1, 0))
        np.testing.assert_allclose(scan.grid.affine, target.study.grid.affine, atol=1e-4)
        assert not space.exists()
    assert contents[0] == contents[1]


def test_chosen_series(anna, tmp_path):
    (target,) = find_targets([str(anna)], MODALITIES, series={"flair": "4", "t2": "3"})
    assert target.study.reference.label.number == 4
    assert target.study.to_dict()["t2"]["description"] == "AX T2 FLAIR"
    with pytest.raises(ScanError, match="no such series"):
        find_targets([str(anna)], MODALITIES, series={"flair": "9"})
    path = toys.save(tmp_path / "p_t1.nii.gz", toys.head())
    with pytest.raises(CohortError, match="applies to DICOM inputs only"):
        find_targets([str(path)], ("t1",), series={"t1": "9"})


def test_an_invalid_study_does_not_affect_the_others(anna, tmp_path):
    bad = study(tmp_path / "ben")
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


def test_a_zip_without_dicom_is_refused(tmp_path):
    toys.save(tmp_path / "scans" / "p_flair.nii.gz", toys.head())
    packed = dicom_toys.zipped(tmp_path / "scans", tmp_path / "scans.zip")
    with pytest.raises(ScanError, match=r"no DICOM image \(found: p_flair\.nii\.gz\)"):
        find_targets([str(packed)], MODALITIES)


@pytest.mark.parametrize("path", [".", "../anna"])
def test_names_of_relative_paths(path, anna, monkeypatch):
    monkeypatch.chdir(anna)
    assert [target.subject.name for target in find_targets([path], MODALITIES)] == ["anna"]


def test_the_preview_needs_dicom(anna, tmp_path):
    lines = preview_dicom([str(anna)], ("t2",))
    assert [line.split()[0] for line in lines] == [f"{anna}:", "series", "3", "4"]
    path = toys.save(tmp_path / "p_t1.nii.gz", toys.head())
    for place, message in ((path, "--preview shows the series of DICOM"), (tmp_path / "nowhere", "no such file")):
        with pytest.raises(CohortError, match=message):
            preview_dicom([str(place)], ("t1",))
