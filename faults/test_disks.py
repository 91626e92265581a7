"""A full disk and a read-only folder: one line of error message, and the same command completes later."""

from collections.abc import Callable

import pytest

from faults.commands import NAMES, Command
from faults.folders import Disk, temporary_files
from faults.processes import RunningCommand, assert_refused, run, run_successfully

AMPLE, PAGE = 1_000_000, 4  # kilobytes

MakeDisk = Callable[[int], Disk]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_full_disk(name, files, make_disk, extent):
    command = Command(name, files)
    large = make_disk(AMPLE)
    complete = command.create_folder(large.folder / "out")
    before = large.used()
    run_successfully(*command.start(complete))
    needed, expected = large.used() - before, command.result(complete)
    for share in extent.disk_shares:
        disk = make_disk(AMPLE)
        out = command.create_folder(disk.folder / "out")
        disk.resize(disk.used() + max(PAGE, int(share * needed) // PAGE * PAGE))
        assert_refused(run(*command.start(out)), str(disk.folder), "No space left", "free disk space")
        assert not temporary_files(disk.folder), "an unfinished file still takes up space"
        assert command.completed(out) <= command.completed(complete), "a partial file passes as complete"
        disk.resize(AMPLE)
        run_successfully(*command.resume(out))
        assert command.result(out) == expected, f"another result after a disk of {share:.0%} of the space needed"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_read_only_folder(name, files, make_disk):
    command = Command(name, files)
    disk = make_disk(AMPLE)
    out = command.create_folder(disk.folder / "out")
    out.mkdir(exist_ok=True)
    try:
        disk.set_writable(False)
    except OSError:
        pytest.skip("needs permission to mount a tmpfs read-only")
    assert_refused(run(*command.start(out)), str(out), "Read-only file system")
    disk.set_writable(True)
    run_successfully(*command.start(out))


def test_disk_full_between_two_saves(files, make_disk):
    command = Command("train", files)
    disk = make_disk(AMPLE)
    out = disk.folder / "out"
    running = RunningCommand(*command.start(out))
    while not (out / "state.previous.safetensors").is_file():
        assert not running.ended, running.wait()
    disk.resize(disk.used() + PAGE)
    assert_refused(running.wait(), str(out), "No space left", "free disk space")
    saved = len(command.completed(out))
    assert saved >= 1, "the previous save is lost"
    disk.resize(AMPLE)
    run_successfully(*command.resume(out))
    assert len(command.completed(out)) > saved
