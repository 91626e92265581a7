"""Uploads of series on different grids."""

import gzip

import nibabel as nib
import numpy as np

from anofpdm.scans import write_nifti
from tests.scans.raw.worlds import moved_head, random_rigid, thick_grid

MOVEMENT = random_rigid(np.random.default_rng(8), 10.0, 12.0)


def test_series_on_different_grids_give_a_mask_on_each(server, store_folder, tmp_path):
    heads = {
        "flair": moved_head("flair", np.eye(4), thick_grid(np.eye(4), (2.0, 2.0, 5.0), (100, 110, 30))),
        "t2": moved_head("t2", MOVEMENT, thick_grid(MOVEMENT, (1.8, 1.8, 6.0), (112, 120, 26))),
    }
    for name, head in heads.items():
        write_nifti(tmp_path / f"{name}.nii.gz", np.where(head.brain, head.voxels, 0), head.grid)
    response = server.upload({name: tmp_path / f"{name}.nii.gz" for name in heads})
    assert response.status == 202, response.error
    job = server.wait(response.json["id"], seconds=120)
    assert job["state"] == "done", job["error"]
    files = {one["role"]: one["url"] for one in server.request(f"/api/results/{job['id']}").json["files"]}
    for name, head in heads.items():
        mask = nib.Nifti1Image.from_bytes(gzip.decompress(server.request(files[f"mask-on-{name}"]).body))
        assert mask.shape == head.grid.shape
        np.testing.assert_allclose(mask.affine, head.grid.affine, atol=1e-3)
    for url in files.values():
        assert str(store_folder).encode() not in server.request(url).body
    server.request(f"/api/jobs/{job['id']}", "DELETE")
