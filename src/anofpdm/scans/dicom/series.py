"""From single slices to volumes: which belong together, in which order, and where in space they lie.

A series that is no regular volume keeps its place in the list, with the reason as its `problem`: a localiser with
three orientations is no fault of a study, and only a series that is needed has to be right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import Frame, Header, Label, read_header
from anofpdm.scans.dicom.source import Source, listed
from anofpdm.scans.grid import LARGEST_SHEAR, Grid, check_affine
from anofpdm.scans.nifti import MAX_VOXELS

OFF_PLACE_MM = 0.01  # at most this far is a slice from its place on the regular grid
MISSING = 1.5  # a gap so many times the usual one has lost a slice
SAME_DIRECTION = 1e-5  # cosines; a head's width away that is 0.003 mm
UNIT = 1e-3  # a direction's length differs from 1 by rounding only
TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])  # DICOM counts to the left and to the back, NIfTI to the right and the front


@dataclass(frozen=True)
class Series:
    label: Label
    frames: tuple[Frame, ...]  # along the normal of their planes, where there is no problem
    affine: np.ndarray | None  # [4, 4] from (column, row, slice) to millimetres, RAS+; none where there is a problem
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
    """Every series of images in a source, in order of number."""
    headers: dict[tuple[str, str], list[Header]] = {}
    for name in source.names:
        header = read_header(source, name)
        if header is not None:
            headers.setdefault((header.label.study, header.label.uid), []).append(header)
    found = [_series(group) for group in headers.values()]
    return sorted(found, key=lambda one: (one.label.number is None, one.label.number or 0, one.label.uid))


def _series(headers: Sequence[Header]) -> Series:
    label = headers[0].label
    frames = [frame for header in headers for frame in header.frames]
    try:
        _check_alike(frames)
        ordered, affine = place(frames)
    except ScanError as problem:
        return Series(label, tuple(frames), None, str(problem))
    return Series(label, tuple(ordered), affine)


# ---- belonging together ----------------------------------------------------------------------------------------------


def _check_alike(frames: Sequence[Frame]) -> None:
    """Slices of one volume have a place, and share everything but that."""
    if any(_is_colour(frame) for frame in frames):
        raise ScanError("pictures in colour, no scan")
    lost = [frame.name for frame in frames if not (frame.position and frame.orientation and frame.spacing)]
    if lost:
        raise ScanError(f"no position, orientation or pixel spacing in {listed(lost)}; export the original series")
    _check_one_kind("sizes", frames, ["{} x {}".format(*frame.size) for frame in frames])
    _check_one_kind(
        "pixel spacings", frames, [" x ".join(f"{mm:.6g}" for mm in _known(frame.spacing)) for frame in frames]
    )
    _check_one_kind("orientations", frames, _directions(frames))
    for what, _ in frames[0].traits:
        _check_one_kind(what, frames, [dict(frame.traits).get(what, "") for frame in frames])
    if len(frames) == 1:
        raise ScanError(f"a single image ({frames[0].name}); a volume needs all its slices, give their folder")
    rows, columns = frames[0].size
    if rows * columns * len(frames) > MAX_VOXELS:
        raise ScanError(f"{columns} x {rows} x {len(frames)} voxels are more than a head scan holds ({MAX_VOXELS:,})")
    bad = [frame.name for frame in frames if not np.isfinite([frame.slope, frame.intercept]).all() or frame.slope == 0]
    if bad:
        raise ScanError(f"values scaled by nothing that makes sense in {listed(bad)}; export it again")


def _is_colour(frame: Frame) -> bool:
    return not dict(frame.traits)["colours"].startswith("MONOCHROME")


def _check_one_kind(what: str, frames: Sequence[Frame], values: Sequence[str]) -> None:
    """The same value for all, or words on who has which."""
    kinds: dict[str, list[str]] = {}
    for frame, value in zip(frames, values, strict=True):
        kinds.setdefault(value, []).append(frame.name)
    if len(kinds) > 1:
        said = "; ".join(f"{value or 'none'} in {listed(names)}" for value, names in list(kinds.items())[:3])
        raise ScanError(f"mixed: {len(kinds)} {what} in one series ({said}); export each volume as a series of its own")


def _directions(frames: Sequence[Frame]) -> list[str]:
    """A word for each frame's orientation, the same for those that rounding alone sets apart."""
    known: list[np.ndarray] = []
    words = []
    for frame in frames:
        cosines = np.array(_known(frame.orientation))
        same = [number for number, one in enumerate(known) if np.abs(one - cosines).max() <= SAME_DIRECTION]
        if not same:
            known.append(cosines)
        words.append("(" + ", ".join(f"{value:.5g}" for value in known[same[0] if same else -1]) + ")")
    return words


def _known(values: tuple[float, ...] | None) -> tuple[float, ...]:
    if values is None:
        raise ValueError("checked before")
    return values


# ---- place in space --------------------------------------------------------------------------------------------------


def place(frames: Sequence[Frame]) -> tuple[list[Frame], np.ndarray]:
    """The frames along their normal, and their affine: equation C.7.6.2.1-1 of the standard, turned to RAS+."""
    cosines = np.array(_known(frames[0].orientation)).reshape(2, 3)  # along a row, along a column
    row_mm, column_mm = _known(frames[0].spacing)  # from row to row, from column to column
    if np.abs(np.linalg.norm(cosines, axis=1) - 1).max() > UNIT:
        raise ScanError(f"directions that are not of length 1 in {frames[0].name}; export it again")
    normal = np.cross(*cosines)
    positions = np.array([_known(frame.position) for frame in frames])  # [n, 3]
    order = np.argsort(positions @ normal, kind="stable")
    ordered, positions = [frames[number] for number in order], positions[order]
    step = _regular_step(ordered, positions, normal)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2] = cosines[0] * column_mm, cosines[1] * row_mm, step
    affine[:3, 3] = positions.mean(axis=0) - step * (len(frames) - 1) / 2
    check_affine(affine, "its geometry")
    return ordered, TO_RAS @ affine


def _regular_step(frames: Sequence[Frame], positions: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """[3] from slice to slice; refused where slices are missing, double, or not in line."""
    heights = positions @ normal
    gaps = np.diff(heights)
    usual = float(np.median(gaps))
    same = np.flatnonzero(gaps <= OFF_PLACE_MM)
    if same.size:
        one, other = frames[same[0]].name, frames[same[0] + 1].name
        raise ScanError(
            f"two slices at one place: {one} and {other}, both at {heights[same[0]]:.2f} mm"
            f"{f', and {same.size - 1} more' if same.size > 1 else ''}; keep one copy of each slice"
        )
    wide = np.flatnonzero(gaps > MISSING * usual)
    if wide.size:
        raise ScanError(_missing_said(frames, heights, usual, wide))
    count = np.arange(len(frames)) - (len(frames) - 1) / 2
    step: np.ndarray = count @ (positions - positions.mean(axis=0)) / (count @ count)  # least squares
    off = np.linalg.norm(positions - positions.mean(axis=0) - count[:, None] * step, axis=1)
    if off.max() > OFF_PLACE_MM:
        worst = int(off.argmax())
        raise ScanError(
            f"slices are not evenly spaced ({gaps.min():.3f} to {gaps.max():.3f} mm): {frames[worst].name} lies "
            f"{off[worst]:.3f} mm from its place on a regular grid; export the original series, or resample it"
        )
    sideways = float(np.linalg.norm(step - (step @ normal) * normal) / np.linalg.norm(step))
    if sideways > LARGEST_SHEAR:
        angle = np.degrees(np.arcsin(min(sideways, 1.0)))
        raise ScanError(
            f"slices are stacked at {angle:.1f} degrees to their normal (sheared, or a tilted gantry); "
            "resample the series onto a grid with right angles first"
        )
    return step


def _missing_said(frames: Sequence[Frame], heights: np.ndarray, usual: float, wide: np.ndarray) -> str:
    first = int(wide[0])
    lost = int(sum(round((heights[gap + 1] - heights[gap]) / usual) - 1 for gap in wide))
    between = (
        f"{frames[first].name} at {heights[first]:.2f} mm and {frames[first + 1].name} at {heights[first + 1]:.2f} mm"
    )
    elsewhere = f", and in {wide.size - 1} more places" if wide.size > 1 else ""
    return (
        f"{lost} of its slices are missing: between {between}{elsewhere} (slices lie {usual:.2f} mm apart); "
        "copy or export the whole series again"
    )
