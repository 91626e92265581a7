"""The corpus of bad files: invalid input, and some that is unusual but valid, each with a command that reads it.

All of it is generated from a few small valid files (`base.make_valid_files`).
"""

from collections.abc import Iterator

from faults.bad_files import cohorts, dicom, models, paths, scores
from faults.bad_files.base import FLAIR, Case, prepare, segment_flair
from faults.bad_files.nifti_bytes import bombs, damaged, gzips, wrong_types
from faults.bad_files.nifti_headers import affines, headers, voxels

SCANS = (damaged, headers, affines, voxels, wrong_types, gzips)


def all_cases() -> dict[str, Case]:
    """By name."""
    sources = (nifti, paths.cases, models.cases, cohorts.cases, dicom.cases, scores.cases)
    cases = [case for source in sources for case in source()]
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "two cases have the same name"
    return by_name


def nifti() -> Iterator[Case]:
    """Every scan is prepared, and bombs and some others are segmented: all commands share one reader."""
    scans = [scan for source in SCANS for scan in source()]
    for number, scan in enumerate([*scans, *bombs()]):
        mentions = "flair" if "faint" in scan.name else scan.path
        turn = number % (3 if scan.valid else 8)
        commands = {"prepare": (prepare("scan"), prepare("scan"))}
        if turn == 0 or number >= len(scans):
            commands["segment"] = (segment_flair(scan.path), segment_flair())
        if turn == 1:
            commands["student"] = (segment_flair(scan.path, "student"), segment_flair(engine="student"))
        for use, (command, reference) in commands.items():
            yield Case(f"{use} {scan.name}", command, FLAIR, scan.edit, scan.valid, mentions, reference)
