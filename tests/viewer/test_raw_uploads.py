"""Uploads of series on different grids."""

import gzip
import io
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from anofpdm.raw.register import Head
from anofpdm.scans import write_nifti
from anofpdm.scans.modalities import InputModalities
from anofpdm.viewer.limits import Limits, RequestError
from anofpdm.viewer.uploads import check_images
from anofpdm.viewer.worker import Ready
from tests.raw.toy_studies import dicom_series, moved_head, random_rigid, thick_grid

MOVEMENT = random_rigid(np.random.default_rng(8), 10.0, 12.0)


@pytest.fixture(scope="module")
def heads():
    """Stripped, on the grids of two series."""
    moved = {
        "flair": moved_head("flair", np.eye(4), thick_grid(np.eye(4), (2.0, 2.0, 5.0), (100, 110, 30))),
        "t2": moved_head("t2", MOVEMENT, thick_grid(MOVEMENT, (1.8, 1.8, 6.0), (112, 120, 26))),
    }
    return {name: Head(np.where(head.brain, head.voxels, 0), head.brain, head.grid) for name, head in moved.items()}


def test_series_on_different_grids_are_accepted_unless_raw_is_never(heads, tmp_path):
    files = {name: tmp_path / f"{name}.nii.gz" for name in heads}
    for name, head in heads.items():
        write_nifti(files[name], head.voxels, head.grid)
    accepts = Ready(InputModalities(tuple(heads)), raw=True)
    assert check_images(files, accepts, Limits()) == files
    with pytest.raises(RequestError, match="not on the grid"):
        check_images(files, replace(accepts, raw=False), Limits())


def test_a_zip_of_a_raw_dicom_study(server, store_folder, tmp_path, heads):
    """No description gives a contrast: the series are chosen by their images. There is a mask on the grid of each."""
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("nilearn")
    from tests import dicom_toys

    for number, head in enumerate(heads.values(), start=3):
        series = dicom_series(head, SeriesNumber=number, SeriesDescription=f"AX {number}")
        series.save(tmp_path / "study", f"S{number}")
    job, result = server.finish({"dicom": dicom_toys.zipped(tmp_path / "study", tmp_path / "a.zip")})
    files = {file["role"]: server.request(file["url"]) for file in result["files"]}
    for name, head in heads.items():
        mask = nib.Nifti1Image.from_bytes(gzip.decompress(files[f"mask-on-{name}"].body))
        assert mask.shape == head.grid.shape
        np.testing.assert_allclose(mask.affine, head.grid.affine, atol=1e-3)
    study = files["summary"].json["study"]
    assert study["reference"] == "flair"
    used = {name: series["shape"] for name, series in study["series"].items()}
    assert used == {name: list(head.grid.shape) for name, head in heads.items()}
    seg = pydicom.dcmread(io.BytesIO(files["dicom-seg"].body))
    mask = nib.Nifti1Image.from_bytes(gzip.decompress(files["mask"].body))
    assert seg.pixel_array.sum() == np.asarray(mask.dataobj).sum() > 0
    for file in files.values():
        assert str(store_folder).encode() not in file.body
    server.delete(job)
