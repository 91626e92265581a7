"""Raw series: bad ones, and a preparation that was stopped. Finished stages are kept, never half a result."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from anofpdm.raw.cache import MANIFEST
from faults.commands import RAW, Command, Input
from faults.processes import RunningCommand, run, run_successfully, wait_until

STAGES = ("brain_flair.nii.gz", "brain_t2.nii.gz", "t2_to_flair.txt")
# Damaged files are refused by the reader of all scans (test_bad_files.py).
BAD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "localiser": lambda voxels: voxels[:, :, ::15],
    "hardly any brain": lambda voxels: np.where(voxels > np.percentile(voxels, 99.9), voxels, 0),
    "four dimensions": lambda voxels: np.stack([voxels] * 3, axis=3),
    "half a brain": lambda voxels: voxels[: len(voxels) // 2],
}


@pytest.mark.sample(2, by=lambda *_: "")
@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("series", ["flair", "t2"])
def test_bad_series(fault, series, files, workspace):
    study = Path(shutil.copytree(files.study, workspace / "study"))
    path = study / f"anna_{series}.nii.gz"
    image = nib.nifti1.load(path)
    nib.save(nib.Nifti1Image(BAD[fault](image.get_fdata(dtype=np.float32)), image.affine), path)
    command = Command(RAW, Input(files.toy, files.many_scans, study))
    outcome = run(*command.start(workspace / "out"))
    assert outcome.code in (1, 3), outcome
    printed = outcome.err + outcome.out
    assert "Traceback" not in printed, outcome
    (message,) = (line for line in printed.splitlines() if line.startswith(("anofpdm: ", "failed: ")))
    assert path.name in message
    check_nothing_segmented(workspace / "out")


def check_nothing_segmented(out: Path) -> None:
    """Only finished stages, their manifest and a picture of the failure."""
    for path in out.rglob("*"):
        if path.is_file() and path.name != ".lock":
            assert path.parent.name == "preparation", path
            assert path.name in (*STAGES, MANIFEST) or path.match("failed_*.png"), path


def test_complete_stages_are_used_again(files, workspace):
    command, out = Command(RAW, files), workspace / "out"
    running = RunningCommand(*command.start(out))
    manifest = out / "anna" / "preparation" / MANIFEST
    assert wait_until(lambda: manifest.is_file() and STAGES[0] in manifest.read_text())
    running.send(signal.SIGTERM)
    assert running.wait().code == 128 + signal.SIGTERM
    check_nothing_segmented(out)
    assert ", reused, " in run_successfully(*command.resume(out)).err


def test_two_runs_share_preparations(undisturbed, workspace):
    """At the same time, each with an --out of its own: every stage is computed once."""
    command, complete, _ = undisturbed(RAW)
    shared = ("--preparations", workspace / "prepared")
    outs = (workspace / "first", workspace / "second")
    runs = [RunningCommand(*command.start(out), *shared) for out in outs]
    outcomes = [running.wait() for running in runs]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    lines = [line for outcome in outcomes for line in outcome.err.splitlines() if line.endswith(" s")]
    assert len(lines) == 2 * len(STAGES), lines
    assert sum(", reused, " in line for line in lines) == len(STAGES)
    masks = {file: value for file, value in command.result(complete).items() if "/preparation/" not in file}
    assert [command.result(out) for out in outs] == [masks, masks]
