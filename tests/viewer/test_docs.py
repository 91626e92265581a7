"""The lines for curl in docs/viewer.md, run against a real server as they stand there."""

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
def test_what_the_page_says_of_curl(server, scan, tmp_path):
    assert len(LINES) == 4, "a new line needs a place in this test"
    for name, path in scan.items():
        shutil.copy(path, tmp_path / f"{name}.nii.gz")

    def run(line, job=""):
        words = shlex.split(line.replace("127.0.0.1:8642", f"127.0.0.1:{server.port}").replace("/ID", f"/{job}"))
        done = subprocess.run([*words, "-sS", "--fail"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    upload, look, fetch, delete = LINES
    job = json.loads(run(upload))["id"]
    server.wait(job, "done")
    assert json.loads(run(look, job))["state"] == "done"
    before = set(tmp_path.iterdir())
    run(fetch, job)
    (mask,) = set(tmp_path.iterdir()) - before
    assert nib.Nifti1Image.from_filename(mask).shape == nib.Nifti1Image.from_filename(scan["flair"]).shape
    run(delete, job)
    assert server.ask(f"/api/jobs/{job}").status == 404
