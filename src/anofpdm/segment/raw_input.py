"""The scan that a model sees: the files as they are, or a raw study, registered and stripped first."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.options import Raw
from anofpdm.raw.brain import DEEPBET, BrainFinder
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.stripped import is_stripped, on_one_grid
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.raw.template import in_template_space
from anofpdm.scans import Scan, read_scan, read_volume
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.nifti import Volume, read_grid
from anofpdm.scans.plausible import check_head
from anofpdm.scans.slices import LEAST_FOREGROUND
from anofpdm.segment.engines import SegmentRequest
from anofpdm.segment.scan_checks import FOREGROUND_TOLERANCE
from anofpdm.segment.scan_input import BrainSource, strip_skull


def read_input(
    files: Mapping[str, str | Path],
    request: SegmentRequest,
    expects: ScanExpectation,
    foreground: tuple[float, float],  # share of the slices in calibration
    cache: StudyCache | None,
) -> tuple[Scan, Study | None]:
    """The scan, and the study that it was prepared from, if it was."""
    inputs = request.inputs
    if missing := inputs.missing_needed(files):
        raise ScanError(
            f"no {' or '.join(missing)} given; the model needs {', '.join(inputs.needed)} of every scan, "
            f"and got {', '.join(files) or 'nothing'}{inputs.explain()}"
        )
    paths = {name: Path(files[name]) for name in inputs.select(files)}
    first = paths[inputs.needed[0]]
    if request.raw is Raw.NEVER or not all(path.is_file() for path in paths.values()):
        return request.brain.apply(_check(read_scan(paths), request, first), first), None
    if request.raw is Raw.AUTO and on_one_grid([read_grid(path) for path in paths.values()]):
        scan = _check(read_scan(paths), request, first)
        given = request.brain.mask is not None or request.brain.command is not None
        whole = not given and not expects.skull and _is_whole_head(scan, paths, foreground)
        stripped = scan if whole else request.brain.apply(scan, first)
        if not whole and _is_in_place(stripped, expects):
            return stripped, None
    return _prepare(paths, request.brain, study_options(request, expects), cache or StudyCache())


def study_options(request: SegmentRequest, expects: ScanExpectation) -> StudyOptions:
    """Slices are divided where they are too far apart for the nearest neighbours that the network takes."""
    counted = expects.nominal_slice_mm is not None
    distances = () if counted else [abs(mm) for mm in request.engine.neighbours_mm]
    return StudyOptions(
        strip=not expects.skull,
        field_of_view_mm=float(expects.field_of_view_mm),
        template=expects.template is not None,
        template_affine=expects.template_affine,
        centre_mm=expects.centre_mm,
        slice_mm=min(distances, default=None),
        trust_header=request.trust_header,
    )


def _check(scan: Scan, request: SegmentRequest, where: Path) -> Scan:
    if not request.trust_header:
        check_head(scan.volumes, scan.grid, where)
    return scan


def _is_in_place(scan: Scan, expects: ScanExpectation) -> bool:
    """Whether the scan lies where the model expects it. A head with its skull cannot be compared with the template."""
    return expects.template is None or in_template_space(scan.volumes[0] > 0, scan.grid)


def _is_whole_head(scan: Scan, paths: Mapping[str, Path], foreground: tuple[float, float]) -> bool:
    """Far more foreground than in calibration, and more than a brain, in every series."""
    shares = [(volume > 0).mean() for volume in scan.volumes]
    if min(shares) <= max(foreground[1] + FOREGROUND_TOLERANCE, LEAST_FOREGROUND):
        return False
    volumes = zip(paths.values(), scan.volumes, strict=True)
    voxel_ml = abs(np.linalg.det(scan.grid.affine[:3, :3])) / 1000
    large = all((volume > 0).sum() * voxel_ml > 500 for volume in scan.volumes)  # phantoms and toys are smaller
    return large and not any(is_stripped(Volume(path, volume, scan.grid)) for path, volume in volumes)


def _prepare(
    paths: dict[str, Path], brain: BrainSource, options: StudyOptions, cache: StudyCache
) -> tuple[Scan, Study]:
    command = None if brain.command is None else partial(_run_command, brain.command)
    mask = None if brain.mask is None else Path(brain.mask)
    finder = BrainFinder(mask, command, brain.description() or DEEPBET, cache.brains)
    study = Study(paths, options, cache, finder).prepare()
    return study.scan, study


def _run_command(command: str, image: Path) -> Volume:
    with tempfile.TemporaryDirectory() as folder:
        return read_volume(strip_skull(command, image, Path(folder)), allow_constant=True)
