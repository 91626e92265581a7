"""From slices to volumes: grouping, order and affine.

A series that is not a regular volume stays in the list, with the reason as its `problem`: a study may contain a
localiser with three orientations, and only the series that are used have to be valid.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import Frame, Label, read_header
from anofpdm.scans.dicom.source import Source, listed
from anofpdm.scans.grid import MAX_SHEAR, Grid, check_affine
from anofpdm.scans.nifti import MAX_VOXELS

MAX_OFFSET_MM = 0.01  # of a slice from its position on the regular grid
MISSING_GAP = 1.5  # times the median gap: a slice is missing
SAME_DIRECTION = 1e-5  # cosines; 0.003 mm across a head
MAX_UNIT_ERROR = 1e-3  # of the length of direction cosines
TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM is LPS+, NIfTI is RAS+


@dataclass(frozen=True, eq=False)  # every series differs from any other
class Series:
    label: Label
    frames: list[Frame]  # sorted along their normal, if there is no problem
    affine: np.ndarray | None  # [4, 4] from (column, row, slice) to millimetres, RAS+; None if there is a problem
    problem: str | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Columns, rows, slices: the order of the array's axes."""
        rows, columns = self.frames[0].size
        return columns, rows, len(self.frames)

    @property
    def grid(self) -> Grid:
        if self.affine is None:
            raise ScanError(f"{self.label}: {self.problem}")
        return Grid.from_affine(self.shape, self.affine)


def find_series(source: Source) -> list[Series]:
    """All image series of a source, sorted by number."""
    labels: dict[tuple[str, str], Label] = {}
    frames: dict[tuple[str, str], list[Frame]] = {}
    for name in source.names:
        if (header := read_header(source, name)) is not None:
            key = header[0].study, header[0].uid
            labels.setdefault(key, header[0])
            frames.setdefault(key, []).extend(header[1])
    every = []
    for key, label in labels.items():
        try:
            _check_alike(frames[key])
            every.append(Series(label, *compute_geometry(frames[key])))
        except ScanError as problem:
            every.append(Series(label, frames[key], None, str(problem)))
    return sorted(every, key=lambda series: (series.label.number is None, series.label.number or 0, series.label.uid))


def _check_alike(frames: Sequence[Frame]) -> None:
    """Slices of a volume have positions, and are equal in everything else."""
    if not all(frame.traits["colours"].startswith("MONOCHROME") for frame in frames):
        raise ScanError("colour images, not a scan")
    incomplete = [frame.name for frame in frames if not (frame.position and frame.orientation and frame.spacing)]
    if incomplete:
        raise ScanError(
            f"no position, orientation or pixel spacing in {listed(incomplete)}; export the original series"
        )
    _check_equal("sizes", frames, ["{} x {}".format(*frame.size) for frame in frames])
    _check_equal("pixel spacings", frames, [" x ".join(f"{mm:.6g}" for mm in frame.spacing) for frame in frames])
    _check_equal("orientations", frames, _directions(frames))
    for what in frames[0].traits:
        _check_equal(what, frames, [frame.traits[what] for frame in frames])
    if len(frames) == 1 and frames[0].thickness is None:
        raise ScanError(f"a single image ({frames[0].name}) without SliceThickness; give the folder with all slices")
    rows, columns = frames[0].size
    if rows * columns * len(frames) > MAX_VOXELS:
        raise ScanError(
            f"{columns} x {rows} x {len(frames)} voxels are more than a head scan has ({MAX_VOXELS:,}); resample it"
        )
    bad = [frame.name for frame in frames if not np.isfinite([frame.slope, frame.intercept]).all() or frame.slope == 0]
    if bad:
        raise ScanError(f"invalid rescale slope or intercept in {listed(bad)}; export it again")


def _check_equal(what: str, frames: Sequence[Frame], values: Sequence[str]) -> None:
    """All values must be equal; the error lists which frame has which."""
    kinds: dict[str, list[str]] = {}
    for frame, value in zip(frames, values, strict=True):
        kinds.setdefault(value, []).append(frame.name)
    if len(kinds) > 1:
        groups = "; ".join(f"{value or 'none'} in {listed(names)}" for value, names in list(kinds.items())[:3])
        raise ScanError(f"mixed: {len(kinds)} {what} in one series ({groups}); export each volume as a separate series")


def _directions(frames: Sequence[Frame]) -> list[str]:
    """Each frame's orientation as text; equal to that of the first where they differ only by rounding."""
    cosines = np.array([frame.orientation for frame in frames])
    cosines[np.abs(cosines - cosines[0]).max(axis=1) <= SAME_DIRECTION] = cosines[0]
    return [f"({', '.join(f'{value:.5g}' for value in row)})" for row in cosines]


def compute_geometry(frames: Sequence[Frame]) -> tuple[list[Frame], np.ndarray]:
    """The frames sorted along their normal, and their affine: equation C.7.6.2.1-1 of the standard, in RAS+."""
    cosines = np.array(frames[0].orientation).reshape(2, 3)  # along a row, along a column
    row_mm, column_mm = frames[0].spacing  # from row to row, from column to column
    if np.abs(np.linalg.norm(cosines, axis=1) - 1).max() > MAX_UNIT_ERROR:
        raise ScanError(f"direction cosines not of length 1 in {frames[0].name}; export it again")
    normal = np.cross(*cosines)
    positions = np.array([frame.position for frame in frames])  # [n, 3]
    order = np.argsort(positions @ normal, kind="stable")
    ordered, positions = [frames[number] for number in order], positions[order]
    step = _regular_step(ordered, positions, normal)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2] = cosines[0] * column_mm, cosines[1] * row_mm, step
    affine[:3, 3] = positions.mean(axis=0) - step * (len(frames) - 1) / 2
    check_affine(affine)
    return ordered, TO_RAS @ affine


def _regular_step(frames: Sequence[Frame], positions: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """[3] from slice to slice; missing, duplicate or misaligned slices are refused."""
    if len(frames) == 1:
        return np.asarray(normal * (frames[0].thickness or 1.0))
    heights = positions @ normal
    _check_gaps(frames, heights)
    count = np.arange(len(frames)) - (len(frames) - 1) / 2
    centred = positions - positions.mean(axis=0)
    step: np.ndarray = count @ centred / (count @ count)  # least squares
    off = np.linalg.norm(centred - count[:, None] * step, axis=1)
    if off.max() > MAX_OFFSET_MM:
        worst, gaps = int(off.argmax()), np.diff(heights)
        raise ScanError(
            f"slices are not evenly spaced ({gaps.min():.3f} to {gaps.max():.3f} mm): {frames[worst].name} is "
            f"{off[worst]:.3f} mm from its position on a regular grid; export the original series, or resample it"
        )
    sideways = float(np.linalg.norm(step - (step @ normal) * normal) / np.linalg.norm(step))
    if sideways > MAX_SHEAR:
        angle = np.degrees(np.arcsin(min(sideways, 1.0)))
        raise ScanError(
            f"slices are stacked at {angle:.1f} degrees to their normal (sheared, or a tilted gantry); "
            "resample the series onto an orthogonal grid first"
        )
    return step


def _check_gaps(frames: Sequence[Frame], heights: np.ndarray) -> None:
    gaps = np.diff(heights)
    usual = float(np.median(gaps))
    same, wide = np.flatnonzero(gaps <= MAX_OFFSET_MM), np.flatnonzero(gaps > MISSING_GAP * usual)
    if same.size:
        first, more = same[0], f", and {same.size - 1} more" if same.size > 1 else ""
        raise ScanError(
            f"two slices at one position: {frames[first].name} and {frames[first + 1].name}, both at "
            f"{heights[first]:.2f} mm{more}; keep one copy of each slice"
        )
    if wide.size:
        first, more = wide[0], f", and in {wide.size - 1} more places" if wide.size > 1 else ""
        below, above = (f"{frames[number].name} at {heights[number]:.2f} mm" for number in (first, first + 1))
        raise ScanError(
            f"{int((np.rint(gaps[wide] / usual) - 1).sum())} of its slices are missing: between {below} and {above}"
            f"{more} (slices are {usual:.2f} mm apart); copy or export the whole series again"
        )
