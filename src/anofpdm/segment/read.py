"""The scan that a model sees: the files as they are, or a raw study, registered and stripped first."""

from collections.abc import Mapping
from pathlib import Path

from anofpdm.errors import ScanError
from anofpdm.options import Raw
from anofpdm.raw.brain import DEEPBET, BrainFinder
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.stripped import is_stripped, on_one_grid
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.raw.template import in_template_space
from anofpdm.scans import Scan, read_scan
from anofpdm.scans.nifti import Volume, read_grid
from anofpdm.scans.plausible import check_head
from anofpdm.scans.slices import LEAST_FOREGROUND
from anofpdm.segment.read_scan import Files, ReadScan, voxel_ml
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.scan_checks import FOREGROUND_TOLERANCE, check_names


def read(files: Files, request: SegmentRequest, run: StudyCache) -> ReadScan:
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
    paths = {name: Path(files[name]) for name in inputs.select(files)}
    check_names(paths)
    size = request.scans.size
    scan = _scan_in_place(paths, request)
    if scan is not None:
        return ReadScan(scan, files, size)
    brain = request.brain
    command = None if brain.command is None else brain.run
    mask = None if brain.mask is None else Path(brain.mask)
    finder = BrainFinder(mask, command, brain.description() or DEEPBET, run.brains)
    study = Study(paths, study_options(request), run, finder).prepare()
    return ReadScan(study.scan, files, size, study)


def _scan_in_place(paths: Mapping[str, Path], request: SegmentRequest) -> Scan | None:
    """The scan without any preparation; None where it has to be prepared."""
    first, expects = paths[request.inputs.needed[0]], request.scans.expects
    if request.raw is Raw.NEVER or not all(path.is_file() for path in paths.values()):
        return request.brain.apply(_read_checked(paths, request), first)
    if request.raw is Raw.ALWAYS or not on_one_grid([read_grid(path) for path in paths.values()]):
        return None
    scan = _read_checked(paths, request)
    if not request.brain.given and not expects.skull and _is_whole_head(scan, paths, request.scans.foreground):
        return None
    scan = request.brain.apply(scan, first)
    # A head with its skull cannot be compared with the template.
    in_place = expects.template is None or in_template_space(scan.volumes[0] > 0, scan.grid)
    return scan if in_place else None


def _read_checked(paths: Mapping[str, Path], request: SegmentRequest) -> Scan:
    scan = read_scan(dict(paths))
    if not request.trust_header:
        check_head(scan.volumes, scan.grid, paths[request.inputs.needed[0]])
    return scan


def _is_whole_head(scan: Scan, paths: Mapping[str, Path], foreground: tuple[float, float]) -> bool:
    """Far more foreground than in calibration, and more than a brain, in every series."""
    shares = [(volume > 0).mean() for volume in scan.volumes]
    if min(shares) <= max(foreground[1] + FOREGROUND_TOLERANCE, LEAST_FOREGROUND):
        return False
    volumes = zip(paths.values(), scan.volumes, strict=True)
    large = all((volume > 0).sum() * voxel_ml(scan.grid) > 500 for volume in scan.volumes)  # phantoms are smaller
    return large and not any(is_stripped(Volume(path, volume, scan.grid)) for path, volume in volumes)


def study_options(request: SegmentRequest) -> StudyOptions:
    """Slices are divided where they are too far apart for the nearest neighbours that the network takes."""
    expects = request.scans.expects
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
