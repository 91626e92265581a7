"""Raw series: bad ones, and faults while they are prepared. Stages that were finished are kept, never half a result."""

import gzip
import shutil
import signal
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from anofpdm.raw.cache import MANIFEST
from anofpdm.scans import read_volume, write_nifti
from faults.extent import Extent
from faults.folders import Disk, hash_files, temporary_files
from faults.processes import Argument, Outcome, RunningCommand, assert_refused, run, run_successfully, wait_until
from faults.summary import FAULTS
from tests.raw.worlds import moved_head, random_rigid, thick_grid

GRIDS = {"flair": ((1.8, 1.8, 5.0), (112, 128, 30)), "t2": ((2.0, 2.0, 4.0), (100, 112, 38))}
MODEL = Path(str(resources.files("anofpdm"))) / "models" / "phantom-tumour"
STAGES = ("brain_flair.nii.gz", "brain_t2.nii.gz", "t2_to_flair.txt")
AMPLE = 1_000_000  # kilobytes


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FLAIR and T2 of a stripped phantom that moved in between, each on a grid of its own."""
    folder = tmp_path_factory.mktemp("study")
    for seed, name in enumerate(GRIDS):
        movement = random_rigid(np.random.default_rng(seed), 8.0 * seed, 10.0 * seed)
        head = moved_head(name, movement, thick_grid(movement, *GRIDS[name]))
        write_nifti(folder / f"anna_{name}.nii.gz", np.where(head.brain, head.voxels, 0), head.grid)
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


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


def make_nan(path: Path) -> None:
    volume = read_volume(path)
    voxels = volume.voxels.astype(np.float32)
    voxels[40:60, 40:60] = np.nan
    nib.save(nib.Nifti1Image(voxels, volume.grid.affine), path)  # type: ignore[no-untyped-call]


def make_4d(path: Path) -> None:
    volume = read_volume(path)
    nib.save(nib.Nifti1Image(np.stack([volume.voxels] * 3, axis=3), volume.grid.affine), path)  # type: ignore[no-untyped-call]


def make_wrong_dimensions(path: Path) -> None:
    data = bytearray(gzip.decompress(path.read_bytes()))
    data[42:44] = (4000).to_bytes(2, "little")  # dim[1]: more voxels than the file has
    path.write_bytes(gzip.compress(bytes(data)))


def make_localiser(path: Path) -> None:
    volume = read_volume(path)
    nib.save(nib.Nifti1Image(volume.voxels[:, :, ::15], volume.grid.affine), path)  # type: ignore[no-untyped-call]


def make_unreadable(path: Path) -> None:
    path.write_bytes(b"not an image")


def make_empty_head(path: Path) -> None:
    volume = read_volume(path)
    voxels = np.zeros(volume.grid.shape, np.float32)
    voxels[50:53, 50:53, 15:17] = 100
    nib.save(nib.Nifti1Image(voxels, volume.grid.affine), path)  # type: ignore[no-untyped-call]


def shear(path: Path) -> None:
    volume = read_volume(path)
    affine = volume.grid.affine.copy()
    affine[0, 1] += 0.8
    image = nib.Nifti1Image(volume.voxels, affine)  # type: ignore[no-untyped-call]
    image.header.set_sform(affine, 1)
    image.header.set_qform(None, 0)
    nib.save(image, path)


BAD = {
    "truncated": truncate, "NaN": make_nan, "four dimensions": make_4d, "wrong dimensions": make_wrong_dimensions,
    "unreadable": make_unreadable, "localiser": make_localiser, "hardly any brain": make_empty_head, "sheared": shear,
}  # fmt: skip


@pytest.mark.sample(3, by=lambda *_: "")
@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("series", GRIDS)
def test_bad_series(fault: str, series: str, study: Path, workspace: Path, record: Callable[..., None]) -> None:
    shutil.copytree(study, workspace / "study")
    path = workspace / "study" / f"anna_{series}.nii.gz"
    BAD[fault](path)
    outcome = run(*segment(workspace / "study", workspace / "out"))
    assert outcome.code in (1, 3), outcome
    assert "Traceback" not in outcome.err + outcome.out, outcome
    (message,) = problem_lines(outcome)
    assert path.name in message
    check_nothing_segmented(workspace / "out")
    record(FAULTS, f"raw series: {fault}", "segment", 1, "refused in one line; nothing is segmented")


def problem_lines(outcome: Outcome) -> list[str]:
    return [line for line in (outcome.err + outcome.out).splitlines() if line.startswith(("anofpdm: ", "failed: "))]


def check_nothing_segmented(out: Path) -> None:
    """Only finished stages, their manifest and a picture of the failure."""
    for path in out.rglob("*"):
        if path.is_file() and path.name != ".lock":
            assert path.parent.name == "preparation", path
            assert path.name in (*STAGES, MANIFEST) or path.match("failed_*.png"), path


# ---- faults during preparation ---------------------------------------------------------------------------------------


@pytest.mark.sample(1, by=lambda *_: "")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
@pytest.mark.parametrize("stage", STAGES[:2])
def test_stopped_during_preparation(
    stage: str,
    number: signal.Signals,
    study: Path,
    workspace: Path,
    expected: dict[str, str],
    record: Callable[..., None],
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
    study: Path, make_disk: Callable[[int], Disk], expected: dict[str, str], extent: Extent, record: Callable[..., None]
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


def test_two_runs_share_preparations(
    study: Path, workspace: Path, expected: dict[str, str], record: Callable[..., None]
) -> None:
    """At the same time, each with an --out of its own: every stage is computed once."""
    shared = ("--preparations", workspace / "prepared")
    both = [RunningCommand(*segment(study, workspace / name, *shared)) for name in ("one", "two")]
    outcomes = [running.wait() for running in both]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    lines = [line for outcome in outcomes for line in outcome.err.splitlines() if line.endswith(" s")]
    assert len(lines) == 2 * len(STAGES), lines
    assert sum(", reused, " in line for line in lines) == len(STAGES)
    for name in ("one", "two"):
        masks = {file: value for file, value in expected.items() if "/preparation/" not in file}
        assert results(workspace / name) == masks
    assert not temporary_files(workspace)
    record(FAULTS, "two runs share preparations", "segment", 1, "each stage is computed once; both results are right")


def test_a_damaged_preparation_is_computed_again(
    study: Path, workspace: Path, expected: dict[str, str], record: Callable[..., None]
) -> None:
    out = workspace / "out"
    run_successfully(*segment(study, out))
    folder = out / "anna" / "preparation"
    (folder / "brain_flair.nii.gz").write_bytes(b"")
    (folder / "t2_to_flair.txt").write_text("Parameters: 1 0 0 0 1 0 0 0 1 50 0 0\nFixedParameters: 0 0 0\n")
    (out / "anna" / "summary.json").unlink()
    again = run_successfully(*segment(study, out))
    assert sum(", reused, " in line for line in again.err.splitlines()) == 1
    assert results(out) == expected
    record(FAULTS, "damaged preparation", "segment", 1, "computed again")
