"""A clinical study, series by series, to one grid: brains extracted, registered to a reference, resampled once."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.raw.combine import CombinedSeries, working_grid
from anofpdm.raw.geometry import resample
from anofpdm.raw.mixed_up import warn_mixed_up
from anofpdm.raw.place import PlacedSeries, Placement, StudyTools, TemplatePosition
from anofpdm.raw.register import Head
from anofpdm.raw.series_header import check_header
from anofpdm.scans.nifti import read_volume
from anofpdm.scans.plausible import check_head, warn_cut_top, warn_empty_planes
from anofpdm.scans.slices import Scan

FIELD_OF_VIEW_MM = 240.0  # of the slices in BraTS; a model may record another one


@dataclass(frozen=True)
class StudyOptions:
    strip: bool = True  # set voxels outside the brain to 0
    field_of_view_mm: float = FIELD_OF_VIEW_MM
    template: bool = False  # whether the scan is brought to MNI space
    template_affine: tuple[float, ...] | None = None  # from the template to the space that the model expects
    centre_mm: tuple[float, ...] | None = None  # of slices in template space; None: of the template's brain
    slice_mm: float | None = None  # slices more than 1.5 times as thick are divided; None: none
    trust_header: bool = False  # sizes that no head has are not refused


@dataclass(frozen=True)
class Study:
    scan: Scan  # the series on one grid
    brain: np.ndarray  # bool, on that grid: the vote of all series
    series: tuple[PlacedSeries, ...]  # the reference first
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # PNG of each series, with brain and edges
    record: Mapping[str, Any] = field(default_factory=dict)  # what was done, for manifest and summary
    template: TemplatePosition | None = None  # None: the scan is in the space of the reference

    @property
    def reference(self) -> PlacedSeries:
        return self.series[0]

    @property
    def reference_to_scan(self) -> np.ndarray:
        """[4, 4], millimetres of the reference to millimetres of the scan."""
        return np.eye(4) if self.template is None else np.linalg.inv(self.template.matrix)

    def to_reference(self, volume: np.ndarray) -> np.ndarray:
        """float32 on the reference's own grid, of a volume on the grid of the scan; 0 outside."""
        return resample(volume, self.scan.grid, self.reference.grid, self.reference_to_scan)

    def from_series(self, volume: np.ndarray, series: PlacedSeries) -> np.ndarray:
        """float32 on the grid of the scan, of a volume on the grid of a series."""
        to_reference = np.eye(4) if self.template is None else self.template.matrix
        return resample(volume, series.grid, self.scan.grid, series.matrix @ to_reference)


def to_series(volume: np.ndarray, reference: PlacedSeries, series: PlacedSeries) -> np.ndarray:
    """float32 on the grid of a series, of a volume on the grid of the reference; linear, 0 outside."""
    return resample(volume, reference.grid, series.grid, np.linalg.inv(series.matrix))


def _digest(head: Head) -> bytes:
    """Of the voxels, whatever the grid."""
    return hashlib.sha256(head.voxels.tobytes()).digest()


def prepare_study(files: Mapping[str, Path], tools: StudyTools, options: StudyOptions | None = None) -> Study:
    """The first series is the reference."""
    options = options or StudyOptions()
    _check_files(files, options)
    (name, path), *others = files.items()
    placement = Placement(tools, 2 * len(files) - 1 + options.template)
    head = placement.find_brain(name, path)
    warn_cut_top(head.brain, head.grid, path)
    tools.report(f"reference: {name} ({path})")
    placed, images = [placement.reference(name, path, head)], {_digest(head): path}
    template = placement.place_template(placed[0], head, options.template_affine) if options.template else None
    centred_on = head if template is None else template.head
    grid = working_grid(centred_on, options.field_of_view_mm, options.slice_mm, options.centre_mm)
    if template is None and grid.slice_mm < head.grid.slice_mm:
        tools.report(f"{name}: slices of {head.grid.slice_mm:.3g} mm divided into slices of {grid.slice_mm:.3g} mm")
    combined = CombinedSeries(name, head, grid, np.eye(4) if template is None else template.matrix)
    for other, other_path in others:
        series = placement.find_brain(other, other_path)
        if (same := images.setdefault(_digest(series), other_path)) != other_path:
            raise ScanError(f"{other_path}: exactly the image of {same}; give the file of each modality")
        placed.append(placement.place(other, other_path, series, head, placed[0]))
        combined.add(other, series, placed[-1].matrix)
    warn_mixed_up(placement.contrasts, files)
    brain = combined.vote()
    if not brain.any():
        raise ScanError(f"{path}: the brain mask is empty; give --brain-mask or --skull-strip")
    pictures = combined.draw(brain)
    for volume in combined.volumes.values():
        np.clip(volume, 0, None, out=volume)
        if options.strip:
            volume[~brain] = 0
    scan = Scan(tuple(files), tuple(combined.volumes.values()), combined.grid)
    return Study(scan, brain, tuple(placed), pictures, template=template)


def _check_files(files: Mapping[str, Path], options: StudyOptions) -> None:
    """Before anything is computed."""
    for path in files.values():
        volume = read_volume(path)
        if not options.trust_header:
            check_head([volume.voxels], volume.grid, path)
        check_header(volume.grid, path)
        warn_empty_planes([volume.voxels], volume.grid, path)
