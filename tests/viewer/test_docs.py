"""Runs the curl commands of docs/viewer.md against a real server."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import nibabel as nib
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "viewer.md"
LINES = [line.strip() for line in PAGE.read_text().splitlines() if line.strip().startswith("curl ")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_curl_commands_of_the_documentation(server, scan, tmp_path):
    assert len(LINES) == 5, "a new command needs to be added to this test"
    for name, path in scan.items():
        shutil.copy(path, tmp_path / f"{name}.nii.gz")

    def run(line, job=""):
        arguments = shlex.split(line.replace("127.0.0.1:8642", f"127.0.0.1:{server.port}").replace("/ID", f"/{job}"))
        ran = subprocess.run([*arguments, "-sS", "--fail"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    upload, listing, query, download, delete = LINES
    job = json.loads(run(upload))["id"]
    server.wait(job)
    assert job in [listed["id"] for listed in json.loads(run(listing))]
    assert json.loads(run(query, job))["state"] == "done"
    before = set(tmp_path.iterdir())
    run(download, job)
    (mask,) = set(tmp_path.iterdir()) - before
    assert nib.Nifti1Image.from_filename(mask).shape == nib.Nifti1Image.from_filename(scan["flair"]).shape
    run(delete, job)
    assert [server.request(f"/api/{kind}/{job}").status for kind in ("jobs", "results")] == [404, 404]
