"""The scan of a subject: its files as they are, or a raw study, registered and stripped first."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.choices import Raw, Template
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.geometry import apply
from anofpdm.raw.register import Head
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.raw.template import in_template_space, measure_affine
from anofpdm.scans import Scan, read_scan, read_volume
from anofpdm.scans.expects import MNI152, ScanExpectation
from anofpdm.scans.grid import check_same_grid, on_one_grid
from anofpdm.scans.nifti import Volume, read_grid
from anofpdm.scans.plausible import shows_skull


@dataclass(frozen=True)
class RawOptions:
    """Auto prepares subjects whose series are on different grids, or outside the space of the template."""

    raw: Raw = Raw.AUTO
    keep_skull: bool = False  # of raw studies that are prepared
    template: Template = Template.NONE


@dataclass(frozen=True)
class SubjectScan:
    scan: Scan
    skull: bool  # whether it shows more than the brain
    study: Study | None = None  # of a raw study that was prepared

    def position(self) -> dict[str, list[float]] | None:
        """Where the scan lies in template space, as a model records it (scans/expects.py). None where it shows a
        skull or is in another space, or without nilearn."""
        volume, grid = self.scan.volumes[0], self.scan.grid
        affine: np.ndarray | None = None if self.study is None else np.eye(4)  # registered here
        if self.study is None and not self.skull:
            with contextlib.suppress(ConfigError):
                affine = measure_affine(Head(volume, ndimage.binary_fill_holes(volume > 0), grid))
        if affine is None:
            return None
        centre_mm = apply(grid.affine, (np.array(grid.shape) - 1) / 2)[:2]
        return {"template_affine": affine[:3].ravel().round(6).tolist(), "centre_mm": centre_mm.round(6).tolist()}

    def lesions(self, subject: Subject) -> np.ndarray:
        """Union of the subject's masks, bool, on the grid of the scan; any value above 0 is lesion."""
        lesions = np.zeros(self.scan.grid.shape, dtype=bool)
        for path in subject.masks:
            drawn = read_volume(path, allow_constant=True)
            if self.study is None:
                check_same_grid(self.scan.grid, next(iter(subject.images.values())), drawn.grid, path)
                lesions |= drawn.voxels > 0
            else:
                lesions |= _from_series(self.study, drawn)
        return lesions


def _from_series(study: Study, drawn: Volume) -> np.ndarray:
    """bool, on the grid of the scan."""
    for series in study.series:
        if on_one_grid([series.grid, drawn.grid]):
            return np.asarray(study.from_series(drawn.voxels > 0, series) >= 0.5)
    names = ", ".join(str(path) for path in study.files.values())
    raise ScanError(f"{drawn.path} is not on the grid of any of {names}; resample it onto that of one of them")


def read_subject(subject: Subject, options: RawOptions, folder: Path | None) -> SubjectScan:
    """`folder` keeps brain masks and transforms of a raw study for later runs."""
    paths = subject.images
    auto = options.raw is Raw.AUTO
    if options.raw is Raw.NEVER or (auto and on_one_grid([read_grid(path) for path in paths.values()])):
        scan = read_scan(paths)
        skull = shows_skull(scan)
        in_place = options.template is Template.NONE or options.raw is Raw.NEVER
        if in_place or (not skull and in_template_space(scan.volumes[0] > 0, scan.grid)):
            return SubjectScan(scan, skull)
    template = None if options.template is Template.NONE else MNI152
    study_options = StudyOptions(ScanExpectation(options.keep_skull, template))
    study = Study(paths, study_options, StudyCache(folder, keep_series=False)).prepare()
    return SubjectScan(study.scan, options.keep_skull, study)
