"""Raw series: bad ones, and faults while they are prepared. Stages that were finished are kept, never half a result."""

import shutil
import signal
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from anofpdm.raw.cache import MANIFEST
from anofpdm.scans import write_nifti
from faults.extent import Extent
from faults.folders import Disk, hash_files, temporary_files
from faults.processes import Argument, RunningCommand, assert_refused, run, run_successfully, wait_until
from faults.summary import FAULTS
from tests.raw.worlds import random_rigid, stripped_head, thick_grid

GRIDS = {"flair": ((1.8, 1.8, 5.0), (112, 128, 30)), "t2": ((2.0, 2.0, 4.0), (100, 112, 38))}
MODEL = Path(str(resources.files("anofpdm"))) / "models" / "phantom-tumour"
STAGES = ("brain_flair.nii.gz", "brain_t2.nii.gz", "t2_to_flair.txt")
AMPLE = 1_000_000  # kilobytes
Record = Callable[..., None]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FLAIR and T2 of a stripped phantom that moved in between, each on a grid of its own."""
    folder = tmp_path_factory.mktemp("study")
    for seed, name in enumerate(GRIDS):
        movement = random_rigid(np.random.default_rng(seed), 8.0 * seed, 10.0 * seed)
        head = stripped_head(name, movement, thick_grid(movement, *GRIDS[name]))
        write_nifti(folder / f"anna_{name}.nii.gz", head.voxels, head.grid)
    return folder


@pytest.fixture(scope="module")
def expected(study: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    run_successfully(*segment(study, out))
    return results(out)


def segment(study: Path, out: Path, *options: Argument) -> tuple[Argument, ...]:
    files = (f"{name}={study / f'anna_{name}.nii.gz'}" for name in GRIDS)
    return "segment", MODEL, *files, "--out", out, "--engine", "student", "--device", "cpu", *options


def results(out: Path) -> dict[str, str]:
    """Hashes of masks and maps; the summary also records which stages were reused."""
    return {name: value for name, value in hash_files(out).items() if name.endswith(".nii.gz")}


# ---- bad series ------------------------------------------------------------------------------------------------------


# Damaged files are refused by the reader of all scans (test_bad_files.py).
BAD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "localiser": lambda voxels: voxels[:, :, ::15],
    "hardly any brain": lambda voxels: np.where(voxels > np.percentile(voxels, 99.9), voxels, 0),
    "four dimensions": lambda voxels: np.stack([voxels] * 3, axis=3),
    "half a brain": lambda voxels: voxels[: len(voxels) // 2],
}


@pytest.mark.sample(3, by=lambda *_: "")
@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("series", GRIDS)
def test_bad_series(fault: str, series: str, study: Path, workspace: Path, record: Record) -> None:
    shutil.copytree(study, workspace / "study")
    path = workspace / "study" / f"anna_{series}.nii.gz"
    image = nib.nifti1.load(path)
    changed = BAD[fault](image.get_fdata(dtype=np.float32))  # type: ignore[no-untyped-call]
    nib.save(nib.Nifti1Image(changed, image.affine), path)  # type: ignore[no-untyped-call]
    outcome = run(*segment(workspace / "study", workspace / "out"))
    assert outcome.code in (1, 3), outcome
    printed = outcome.err + outcome.out
    assert "Traceback" not in printed, outcome
    (message,) = (line for line in printed.splitlines() if line.startswith(("anofpdm: ", "failed: ")))
    assert path.name in message
    check_nothing_segmented(workspace / "out")
    record(FAULTS, f"raw series: {fault}", "segment", 1, "refused in one line; nothing is segmented")


def check_nothing_segmented(out: Path) -> None:
    """Only finished stages, their manifest and a picture of the failure."""
    for path in out.rglob("*"):
        if path.is_file() and path.name != ".lock":
            assert path.parent.name == "preparation", path
            assert path.name in (*STAGES, MANIFEST) or path.match("failed_*.png"), path


# ---- faults during preparation ---------------------------------------------------------------------------------------


@pytest.mark.sample(1, by=lambda *_: "")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("stage", STAGES[:2])
def test_stopped_during_preparation(
    stage: str, number: signal.Signals, study: Path, workspace: Path, expected: dict[str, str], record: Record
) -> None:
    out = workspace / "out"
    running = RunningCommand(*segment(study, out))
    manifest = out / "anna" / "preparation" / MANIFEST
    assert wait_until(lambda: manifest.is_file() and stage in manifest.read_text())
    running.send(number)
    outcome = running.wait()
    if number != signal.SIGKILL:
        assert outcome.code == 128 + number, outcome
        assert "to resume" in outcome.error_line
        assert not temporary_files(out)
    check_nothing_segmented(out)
    resumed = run_successfully(*segment(study, out))
    assert ", reused, " in resumed.err
    assert results(out) == expected
    record(FAULTS, "stopped while raw series are prepared", "segment", 1, "resumed with the same result")


def test_disk_full_during_preparation(
    study: Path, make_disk: Callable[[int], Disk], expected: dict[str, str], extent: Extent, record: Record
) -> None:
    for share in extent.disk_shares:
        disk = make_disk(AMPLE)
        disk.resize(max(8, int(share * 400) // 4 * 4))  # the preparation alone needs about 1,500 kB
        out = disk.folder / "out"
        assert_refused(run(*segment(study, out)), str(disk.folder), "No space left", "free disk space")
        assert not temporary_files(disk.folder)
        disk.resize(AMPLE)
        run_successfully(*segment(study, out))
        assert results(out) == expected
    record(FAULTS, "disk full while raw series are prepared", "segment", len(extent.disk_shares), "refused; resumed")


def test_two_runs_share_preparations(study: Path, workspace: Path, expected: dict[str, str], record: Record) -> None:
    """At the same time, each with an --out of its own: every stage is computed once."""
    shared = ("--preparations", workspace / "prepared")
    runs = [RunningCommand(*segment(study, workspace / name, *shared)) for name in ("one", "two")]
    outcomes = [running.wait() for running in runs]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    lines = [line for outcome in outcomes for line in outcome.err.splitlines() if line.endswith(" s")]
    assert len(lines) == 2 * len(STAGES), lines
    assert sum(", reused, " in line for line in lines) == len(STAGES)
    for name in ("one", "two"):
        masks = {file: value for file, value in expected.items() if "/preparation/" not in file}
        assert results(workspace / name) == masks
    assert not temporary_files(workspace)
    record(FAULTS, "two runs share preparations", "segment", 1, "each stage is computed once; both results are right")
