"""A clinical study, series by series, to one grid: brains extracted, registered to a reference, resampled once.

The reference keeps its own voxels: its grid is only cropped or padded, by whole voxels and within its slices, to the
field of view that the model was trained with. The other series are resampled to that grid, each once.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import nibabel as nib
import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.grid import Grid
from anofpdm.scans.nifti import Volume, read_volume
from anofpdm.scans.raw.checks import Agreement, check_brain, check_registration, measure_agreement
from anofpdm.scans.raw.geometry import apply, coverage, resample
from anofpdm.scans.raw.header import check_header
from anofpdm.scans.raw.register import Head, Registration
from anofpdm.scans.slices import Scan

FIELD_OF_VIEW_MM = 240.0  # of the slices in BraTS; a model may record another one
REFERENCE_WEIGHT = 1.5  # in the vote over brain masks: decides between two series


class StudyTools(Protocol):
    """Where brains and registrations come from: computed, or stored by an earlier run."""

    def brain_of(self, name: str, volume: Volume) -> np.ndarray:
        """bool [i, j, k]."""

    def register(self, name: str, reference: Head, series: Head) -> Registration: ...

    def report(self, line: str) -> None:
        """A line for the user: which stage took how long."""


@dataclass(frozen=True)
class StudyOptions:
    strip: bool = True  # set voxels outside the brain to 0
    field_of_view_mm: float = FIELD_OF_VIEW_MM


@dataclass(frozen=True)
class PlacedSeries:
    name: str
    path: Path
    grid: Grid  # its own
    matrix: np.ndarray  # [4, 4], millimetres of the reference to its millimetres
    brain_ml: float
    registration: Registration | None = None  # None: it is the reference
    agreement: Agreement | None = None


@dataclass(frozen=True)
class Study:
    scan: Scan  # the series on one grid
    brain: np.ndarray  # bool, on that grid: the vote of all series
    series: tuple[PlacedSeries, ...]  # the reference first

    @property
    def reference(self) -> PlacedSeries:
        return self.series[0]

    def to_reference(self, volume: np.ndarray) -> np.ndarray:
        """float32 on the reference's own grid, of a volume on the grid of the scan; 0 outside."""
        return resample(volume, self.scan.grid, self.reference.grid, np.eye(4))


def to_series(volume: np.ndarray, reference: PlacedSeries, series: PlacedSeries) -> np.ndarray:
    """float32 on the grid of a series, of a volume on the grid of the reference; linear, 0 outside."""
    return resample(volume, reference.grid, series.grid, np.linalg.inv(series.matrix))


def prepare_study(files: Mapping[str, Path], tools: StudyTools, options: StudyOptions | None = None) -> Study:
    """The first series is the reference."""
    options = options or StudyOptions()
    for path in files.values():
        check_header(read_volume(path).grid, path)
    (name, path), *others = files.items()
    head = _extract(name, path, tools)
    tools.report(f"reference: {name} ({path})")
    placed = [PlacedSeries(name, path, head.grid, np.eye(4), head.volume_ml)]
    grid = _working_grid(head, options.field_of_view_mm)
    votes = REFERENCE_WEIGHT * resample(head.brain, head.grid, grid, np.eye(4))
    weights = np.full(grid.shape, REFERENCE_WEIGHT, np.float32)
    volumes = [resample(head.voxels, head.grid, grid, np.eye(4))]
    for other, other_path in others:
        series = _extract(other, other_path, tools)
        one = _place(other, other_path, series, head, placed[0], tools)
        placed.append(one)
        volumes.append(resample(series.voxels, series.grid, grid, one.matrix))
        votes += resample(series.brain, series.grid, grid, one.matrix)
        weights += coverage(series.grid, grid, one.matrix)
    brain = votes >= 0.5 * weights
    if not brain.any():
        raise ScanError(f"{path}: the brain mask is empty; give --brain-mask or --skull-strip")
    if options.strip:
        volumes = [np.where(brain, volume, 0) for volume in volumes]
    scan = Scan(tuple(files), tuple(np.clip(volume, 0, None) for volume in volumes), grid)
    return Study(scan, brain, tuple(placed))


def _extract(name: str, path: Path, tools: StudyTools) -> Head:
    start = time.perf_counter()
    volume = read_volume(path)
    head = Head(volume.voxels.astype(np.float32), tools.brain_of(name, volume), volume.grid)
    check_brain(head, path)
    tools.report(f"{name}: brain of {head.volume_ml:.0f} ml, {time.perf_counter() - start:.1f} s")
    return head


def _place(name: str, path: Path, series: Head, head: Head, reference: PlacedSeries, tools: StudyTools) -> PlacedSeries:
    start = time.perf_counter()
    found = tools.register(name, head, series)
    agreement = measure_agreement(head, series.brain, series.grid, found.matrix)
    check_registration(found, agreement, path, reference.path)
    moved = np.linalg.norm(apply(found.matrix, head.centre_mm) - head.centre_mm)
    what = "position in the header kept" if found.kept else f"moved by {moved:.1f} mm"
    tools.report(
        f"{name}: registered to {reference.name}, {what}, brain masks agree by {agreement.dice:.2f}, "
        f"{time.perf_counter() - start:.1f} s"
    )
    return PlacedSeries(name, path, series.grid, found.matrix, series.volume_ml, found, agreement)


def _working_grid(head: Head, field_of_view_mm: float) -> Grid:
    """The reference's grid, cropped or padded within its axial slices to a square around the brain."""
    axial = int(np.argmax(nib.io_orientation(head.grid.affine)[:, 0] == 2))  # the axis from inferior to superior
    shape, first = list(head.grid.shape), np.zeros(3)
    for axis in range(3):
        if axis == axial:
            continue
        others = tuple(other for other in range(3) if other != axis)
        inside = np.flatnonzero(head.brain.any(axis=others))
        size = round(field_of_view_mm / head.grid.spacing_mm[axis])
        size = max(size, int(inside[-1] - inside[0] + 1))
        first[axis] = (inside[0] + inside[-1]) // 2 - size // 2
        shape[axis] = size
    affine = head.grid.affine.copy()
    affine[:3, 3] = apply(head.grid.affine, first)
    return Grid.from_affine((shape[0], shape[1], shape[2]), affine)
