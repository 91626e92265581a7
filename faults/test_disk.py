"""A disk that fills, and a folder that may not be written to: one line that names the file, and a way to go on."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import (
    Case,
    calibrate_case,
    distill_case,
    evaluate_case,
    phantom_case,
    prepare_case,
    segment_case,
    train_case,
)
from commands import Disk, Running, record, refused, run, succeed, unfinished

AMPLE, PAGE = 1_000_000, 4  # kilobytes
SHARES = (0.02, 0.9)  # of the room that a whole run leaves filled
WITH_A_MODEL = ("calibrate", "distill")  # they write beside the weights that they are given

MakeDisk = Callable[[int], Disk]


def case_named(name: str, toy: Path, many_scans: Path) -> Case:
    cohort = toy / "cohort"
    return {
        "phantom": phantom_case,
        "prepare": lambda: prepare_case(many_scans),
        "train": lambda: train_case(cohort, save_minutes="0"),
        "calibrate": lambda: calibrate_case(cohort),
        "distill": lambda: distill_case(cohort),
        "segment": lambda: segment_case(toy / "model", cohort),
        "evaluate": lambda: evaluate_case(toy / "model", cohort),
    }[name]()


def folder_on(disk: Disk, case: Case, toy: Path) -> Path:
    """Where the command is to write: a new folder, or the model that it is about."""
    out = disk.folder / "out"
    if case.name in WITH_A_MODEL:
        shutil.copytree(toy / "model", out)
        for name in ("calibration.json", "calibration.png") if case.name == "calibrate" else ():
            (out / name).unlink()
    return out


NAMES = ["phantom", "prepare", "train", "calibrate", "distill", "segment", "evaluate"]


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest, toy: Path, many_scans: Path) -> Case:
    return case_named(request.param, toy, many_scans)


def test_a_disk_that_fills(case: Case, toy: Path, disk: MakeDisk) -> None:
    with_room = disk(AMPLE)
    out = folder_on(with_room, case, toy)
    before = with_room.used()
    succeed(*case.begin(out))
    needed, wanted = with_room.used() - before, case.result(out)
    for share in SHARES:
        small = disk(AMPLE)
        out = folder_on(small, case, toy)
        small.resize(small.used() + max(PAGE, int(share * needed) // PAGE * PAGE))
        refused(run(*case.begin(out)), str(small.folder), "No space left", "free disk space")
        assert not unfinished(small.folder), "what could not be written takes up the room"
        assert case.done(out) <= case.done(with_room.folder / "out"), "something half-written is taken as whole"
        small.resize(AMPLE)
        succeed(*case.next(out))
        assert case.result(out) == wanted, f"with {share:.0%} of the room at first, the result is another one"
    record(f"{case.name} on a disk that fills", len(SHARES), "refused in one line, then the same result")


def test_a_folder_that_may_not_be_written_to(case: Case, toy: Path, disk: MakeDisk) -> None:
    small = disk(AMPLE)
    out = folder_on(small, case, toy)
    out.mkdir(exist_ok=True)
    try:
        small.may_be_written(False)
    except OSError as problem:
        pytest.skip(f"a read-only disk needs the right to mount one: {problem}")
    refused(run(*case.begin(out)), str(out), "Read-only file system")
    small.may_be_written(True)
    succeed(*case.begin(out))
    record(f"{case.name} into a read-only folder", 1, "refused in one line, then finished")


def test_a_disk_that_fills_under_a_run_that_saved_before(toy: Path, disk: MakeDisk) -> None:
    """The save before survives, and the run goes on from it."""
    case = train_case(toy / "cohort", save_minutes="0")
    small = disk(AMPLE)
    out = small.folder / "out"
    running = Running(*case.begin(out))
    while not (out / "state.previous.safetensors").is_file():
        assert not running.over, running.wait()
    small.resize(small.used() + 4)
    refused(running.wait(), str(out), "No space left", "free disk space")
    saved = len(case.done(out))
    assert saved >= 1, "the save before is lost"
    small.resize(AMPLE)
    succeed(*case.next(out))
    assert len(case.done(out)) > saved
    record("train on a disk that fills between two saves", 1, "the save before is whole, and the run goes on from it")
