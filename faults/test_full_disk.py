"""A full disk and a read-only folder: one line of error message, and the same command completes later."""

from collections.abc import Callable
from pathlib import Path

import pytest

from faults.extent import Extent
from faults.folders import Disk, temporary_files
from faults.processes import RunningCommand, assert_refused, run, run_successfully
from faults.resumable import NAMES, Command, command_named, train
from faults.summary import FAULTS, skip_without

AMPLE, PAGE = 1_000_000, 4  # kilobytes

MakeDisk = Callable[[int], Disk]


def create_folder(disk: Disk, command: Command, toy: Path) -> Path:
    out = command.create_folder(disk.folder / "out", toy)
    for name in ("calibration.json", "calibration.png") if command.name == "calibrate" else ():
        (out / name).unlink()
    return out


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_full_disk(name: str, toy: Path, many_scans: Path, make_disk: MakeDisk, extent: Extent, record) -> None:
    command = command_named(name, toy, many_scans)
    large = make_disk(AMPLE)
    out = create_folder(large, command, toy)
    before = large.used()
    run_successfully(*command.start(out))
    needed, expected = large.used() - before, command.result(out)
    for share in extent.disk_shares:
        disk = make_disk(AMPLE)
        out = create_folder(disk, command, toy)
        disk.resize(disk.used() + max(PAGE, int(share * needed) // PAGE * PAGE))
        assert_refused(run(*command.start(out)), str(disk.folder), "No space left", "free disk space")
        assert not temporary_files(disk.folder), "an unfinished file still takes up space"
        assert command.completed(out) <= command.completed(large.folder / "out"), "a partial file passes as complete"
        disk.resize(AMPLE)
        run_successfully(*command.resume(out))
        assert command.result(out) == expected, f"another result after a disk of {share:.0%} of the space needed"
    record(FAULTS, "disk full", name, len(extent.disk_shares), "refused in one line; resumed with the same result")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_read_only_folder(name: str, toy: Path, many_scans: Path, make_disk: MakeDisk, record) -> None:
    command = command_named(name, toy, many_scans)
    disk = make_disk(AMPLE)
    out = create_folder(disk, command, toy)
    out.mkdir(exist_ok=True)
    try:
        disk.set_writable(False)
    except OSError:
        skip_without("permission to mount a tmpfs read-only")
    assert_refused(run(*command.start(out)), str(out), "Read-only file system")
    disk.set_writable(True)
    run_successfully(*command.start(out))
    record(FAULTS, "read-only folder", name, 1, "refused in one line; completed once writable")


def test_disk_full_between_two_saves(toy: Path, make_disk: MakeDisk, record) -> None:
    command = train(toy / "cohort", save_minutes="0")
    disk = make_disk(AMPLE)
    out = disk.folder / "out"
    running = RunningCommand(*command.start(out))
    while not (out / "state.previous.safetensors").is_file():
        assert not running.ended, running.wait()
    disk.resize(disk.used() + 4)
    assert_refused(running.wait(), str(out), "No space left", "free disk space")
    saved = len(command.completed(out))
    assert saved >= 1, "the previous save is lost"
    disk.resize(AMPLE)
    run_successfully(*command.resume(out))
    assert len(command.completed(out)) > saved
    record(FAULTS, "disk full between two saves", "train", 1, "the previous save is intact; resumed from it")
