"""The scan that a model sees: the files as they are, or a raw study, registered and stripped first."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from anofpdm.choices import Raw
from anofpdm.errors import ScanError
from anofpdm.raw.brain import DEEPBET, BrainFinder
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.raw.template import in_template_space
from anofpdm.report.display import SliceSpace
from anofpdm.scans import AxialPlanes, Grid, Scan, read_scan, scan_slices
from anofpdm.scans.grid import on_one_grid
from anofpdm.scans.nifti import read_grid
from anofpdm.scans.plausible import check_head, is_stripped
from anofpdm.scans.slices import LEAST_FOREGROUND, foreground_of
from anofpdm.segment.engines import EngineSlices
from anofpdm.segment.request import SegmentRequest

SMALLEST_HEAD_ML = 500  # phantoms are smaller


@dataclass(frozen=True)
class ReadScan:
    """Volumes on one grid, and where they come from."""

    scan: Scan
    files: Mapping[str, Path]  # by modality of the scan
    size: int  # slices are size x size
    study: Study | None = None  # that the scan was prepared from; None: the files are on one grid already

    @property
    def where(self) -> Path:
        """The file to name in messages: that of the reference."""
        return self.files[self.scan.modalities[0]]

    @cached_property
    def planes(self) -> AxialPlanes:
        return AxialPlanes(self.scan.grid, self.size)

    @property
    def grid(self) -> Grid:
        """Of the results."""
        return self.scan.grid if self.study is None else self.study.reference.grid

    def cut(self, nominal_slice_mm: float | None) -> EngineSlices:
        """Axial slices; of spacing `nominal_slice_mm`, if given, instead of that in the header."""
        thin = [axis for axis in range(3) if self.scan.grid.shape[axis] == 1]
        if thin and thin != [self.scan.grid.axial_axis]:
            problem = "a single slice that is not axial; slices are segmented axially, give a 3D scan"
            raise ScanError(f"{self.where}: {problem}")
        slices = scan_slices(self.scan, self.size)
        if not len(slices.indices):
            raise ScanError(f"{self.where}: no axial slice has enough foreground; is it a head scan?")
        spacing_mm = nominal_slice_mm or self.planes.spacing_mm
        return EngineSlices(slices.pixels, self.scan.modalities, slices.indices, spacing_mm)

    def to_grid(self, slices: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[n, H, W] of slices of the network -> [i, j, k] on the grid of the results."""
        volume = self.planes.to_native(slices, indices)
        return volume if self.study is None else self.study.to_reference(volume)

    @property
    def slice_space(self) -> SliceSpace:
        return SliceSpace(self.scan.grid, np.eye(4) if self.study is None else self.study.reference_to_scan)

    @property
    def brain_ml(self) -> float:
        """Of a scan with its skull, of the head."""
        brain = self.study.brain if self.study else foreground_of(self.scan.volumes)
        return float(brain.sum() * self.scan.grid.voxel_ml)


def read(files: Mapping[str, Path], request: SegmentRequest, cache: StudyCache) -> ReadScan:
    """`files`: NIfTI, by modality in lower case. A raw study is prepared, and its preparation kept in the cache."""
    inputs, known = request.inputs, {*request.scans.modalities, *request.modalities}
    unknown = [name for name in files if name not in known]
    if unknown and inputs.optional:  # a misspelt optional modality would count as missing
        names = ", ".join(request.modalities)
        raise ScanError(f"{', '.join(unknown)}: not a modality of the model; choose from {names}")
    if missing := inputs.missing_needed(files):
        raise ScanError(
            f"no {' or '.join(missing)} given; the model needs {', '.join(inputs.needed)} of every scan, "
            f"and got {', '.join(files) or 'nothing'}{inputs.explain()}"
        )
    used = {name: files[name] for name in inputs.select(files)}
    scan = _scan_in_place(used, request)
    if scan is not None:
        return ReadScan(scan, used, request.scans.size)
    brain = request.brain
    command = None if brain.command is None else brain.run
    finder = BrainFinder(brain.mask, command, brain.description() or DEEPBET, cache.brains)
    study = Study(used, study_options(request), cache, finder).prepare()
    return ReadScan(study.scan, used, request.scans.size, study)


def _scan_in_place(files: Mapping[str, Path], request: SegmentRequest) -> Scan | None:
    """The scan without any preparation; None where it has to be prepared."""
    first, expects = next(iter(files.values())), request.scans.expects
    choose = request.raw is not Raw.NEVER and all(path.is_file() for path in files.values())
    if choose and (request.raw is Raw.ALWAYS or not on_one_grid([read_grid(path) for path in files.values()])):
        return None
    scan = read_scan(dict(files))
    if not request.trust_header:
        check_head(scan.volumes, scan.grid, first)
    if choose and not request.brain.given and not expects.skull and _is_whole_head(scan, request):
        return None
    scan = request.brain.apply(scan, first)
    # A head with its skull cannot be compared with the template.
    if choose and expects.template is not None and not in_template_space(scan.volumes[0] > 0, scan.grid):
        return None
    return scan


def _is_whole_head(scan: Scan, request: SegmentRequest) -> bool:
    """Far more foreground than in calibration, and more than a brain, in every series."""
    most = max(request.scans.usual_foreground[1], LEAST_FOREGROUND)
    for volume in scan.volumes:
        foreground = volume > 0
        if foreground.mean() <= most or foreground.sum() * scan.grid.voxel_ml <= SMALLEST_HEAD_ML:
            return False
        if is_stripped(volume, scan.grid):
            return False
    return True


def study_options(request: SegmentRequest) -> StudyOptions:
    """Slices are divided where they are too far apart for the nearest neighbours that the network takes."""
    expects = request.scans.expects
    counted = expects.nominal_slice_mm is not None
    distances = () if counted else [abs(mm) for mm in request.engine.neighbours_mm]
    return StudyOptions(expects, min(distances, default=None), request.trust_header)
