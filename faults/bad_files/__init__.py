"""The corpus of bad files: invalid input, and some that is unusual but valid, each with a command that reads it.

All of it is generated from a few small valid files (`base.make_valid_files`).
"""

from collections.abc import Iterator

from faults.bad_files import cohorts, dicom, models, paths, scores
from faults.bad_files.base import FLAIR, UNUSUAL, Case, prepare, segment_flair
from faults.bad_files.nifti_bytes import bombs, damaged, gzips, wrong_types
from faults.bad_files.nifti_headers import affines, headers, voxels

SCANS = {  # each with its kind
    damaged: "damaged NIfTI file", headers: "NIfTI header", affines: "NIfTI header", voxels: "NIfTI header",
    wrong_types: "damaged NIfTI file", gzips: "damaged NIfTI file", bombs: "decompression bomb",
}  # fmt: skip


def all_cases() -> dict[str, Case]:
    """By name."""
    sources = (nifti, paths.cases, models.cases, cohorts.cases, dicom.cases, scores.cases)
    cases = [case for source in sources for case in source()]
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "two cases have the same name"
    return by_name


def nifti() -> Iterator[Case]:
    """Every scan is prepared, and some are segmented by either engine: all commands share one reader."""
    scans = [(kind, scan) for source, kind in SCANS.items() for scan in source()]
    for number, (kind, scan) in enumerate(scans):
        mentions = "flair" if "faint" in scan.name else scan.path
        turn = number % (3 if scan.valid else 8)
        commands = {"prepare": (prepare("scan"), prepare("scan"))}
        if turn == 0 or "bomb" in kind:
            commands["segment"] = (segment_flair(scan.path), segment_flair())
        if turn == 1:
            commands["student"] = (segment_flair(scan.path, "student"), segment_flair(engine="student"))
        for use, (command, reference) in commands.items():
            kind_of_case = UNUSUAL if scan.valid else kind
            yield Case(f"{use} {scan.name}", kind_of_case, command, FLAIR, scan.edit, scan.valid, mentions, reference)
