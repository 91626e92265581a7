"""Damaged and unusual NIfTI files, prepared and segmented."""

from collections.abc import Iterator
from pathlib import Path

from faults.bad_files.base import Case, Make, ValidFiles, prepare_flair, segment_flair
from faults.bad_files.nifti_bombs import bombs
from faults.bad_files.nifti_bytes import flipped, gzips, truncated, wrong_types
from faults.bad_files.nifti_headers import affines, headers
from faults.bad_files.nifti_scan import Scan
from faults.bad_files.nifti_voxels import voxel_types, voxel_values

SOURCES = (truncated, flipped, headers, affines, voxel_types, wrong_types, gzips, bombs, voxel_values)


def cases() -> Iterator[Case]:
    """Every scan is prepared, and some are segmented by either engine: all commands share one reader."""
    scans = [scan for source in SOURCES for scan in source()]
    for number, scan in enumerate(scans):
        mentions = "flair" if "faint" in scan.name else f"p_flair{scan.suffix}"
        turn = number % (3 if scan.valid else 8)
        yield Case(f"prepare {scan.name}", scan.kind, _prepare(scan), scan.valid, mentions)
        if turn == 0 or "bomb" in scan.kind:
            yield Case(f"segment {scan.name}", scan.kind, _segment(scan, "diffusion"), scan.valid, mentions)
        if turn == 1:
            make = _segment(scan, "student")
            yield Case(f"segment student {scan.name}", scan.kind, make, scan.valid, mentions, "student")


def _segment(scan: Scan, engine: str) -> Make:
    return lambda folder, files: segment_flair(files, scan.write(folder, files), engine=engine)


def _prepare(scan: Scan) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "src").mkdir()
        scan.write(folder / "src", files)
        return prepare_flair(folder, files)

    return make
