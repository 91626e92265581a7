"""Uploads of series on different grids."""

import gzip
import io

import nibabel as nib
import numpy as np
import pytest

from anofpdm.raw.register import Head
from anofpdm.scans import write_nifti
from tests.raw.worlds import dicom_series, moved_head, random_rigid, thick_grid

MOVEMENT = random_rigid(np.random.default_rng(8), 10.0, 12.0)


@pytest.fixture(scope="module")
def heads():
    """Stripped, on the grids of two series."""
    made = {
        "flair": moved_head("flair", np.eye(4), thick_grid(np.eye(4), (2.0, 2.0, 5.0), (100, 110, 30))),
        "t2": moved_head("t2", MOVEMENT, thick_grid(MOVEMENT, (1.8, 1.8, 6.0), (112, 120, 26))),
    }
    return {name: Head(np.where(one.brain, one.voxels, 0), one.brain, one.grid) for name, one in made.items()}


def finish(server, response):
    """The id of the job, and the addresses of its files by role."""
    assert response.status == 202, response.error
    job = server.wait(response.json["id"], seconds=120)
    assert job["state"] == "done", job["error"]
    return job["id"], {one["role"]: one["url"] for one in server.request(f"/api/results/{job['id']}").json["files"]}


def check_masks(server, files, heads):
    for name, head in heads.items():
        mask = nib.Nifti1Image.from_bytes(gzip.decompress(server.request(files[f"mask-on-{name}"]).body))
        assert mask.shape == head.grid.shape
        np.testing.assert_allclose(mask.affine, head.grid.affine, atol=1e-3)


def test_series_on_different_grids_give_a_mask_on_each(server, store_folder, tmp_path, heads):
    for name, head in heads.items():
        write_nifti(tmp_path / f"{name}.nii.gz", head.voxels, head.grid)
    job, files = finish(server, server.upload({name: tmp_path / f"{name}.nii.gz" for name in heads}))
    check_masks(server, files, heads)
    for url in files.values():
        assert str(store_folder).encode() not in server.request(url).body
    server.request(f"/api/jobs/{job}", "DELETE")


def test_a_zip_of_a_raw_dicom_study(server, store_folder, tmp_path, heads):
    """No description gives a contrast: the series are chosen by their images."""
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("nilearn")
    from tests import dicom_toys

    for number, head in enumerate(heads.values(), start=3):
        series = dicom_series(head, SeriesNumber=number, SeriesDescription=f"AX {number}")
        series.save(tmp_path / "study", f"S{number}")
    job, files = finish(server, server.upload({"dicom": dicom_toys.zipped(tmp_path / "study", tmp_path / "a.zip")}))
    check_masks(server, files, heads)
    summary = server.request(files["summary"]).json
    assert summary["study"]["reference"] == "flair"
    used = {name: series["shape"] for name, series in summary["study"]["series"].items()}
    assert used == {name: list(head.grid.shape) for name, head in heads.items()}
    seg = pydicom.dcmread(io.BytesIO(server.request(files["dicom-seg"]).body))
    mask = nib.Nifti1Image.from_bytes(gzip.decompress(server.request(files["mask"]).body))
    assert seg.pixel_array.sum() == np.asarray(mask.dataobj).sum() > 0
    for url in files.values():
        assert str(store_folder).encode() not in server.request(url).body
    server.request(f"/api/jobs/{job}", "DELETE")
