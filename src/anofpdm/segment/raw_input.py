"""The scan that a model sees: the files as they are, or a raw study, registered and stripped first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.errors import ConfigError, ScanError
from anofpdm.network.expects import ScanExpectation
from anofpdm.options import Raw
from anofpdm.scans import Scan, read_scan, read_volume
from anofpdm.scans.nifti import Volume, read_grid
from anofpdm.scans.raw.brain import Networks, extract_brain, load_networks
from anofpdm.scans.raw.preparation import Preparation, discard
from anofpdm.scans.raw.stripped import is_stripped, on_one_grid
from anofpdm.scans.raw.study import Study, StudyOptions
from anofpdm.scans.slices import LEAST_FOREGROUND
from anofpdm.segment.engines import SegmentRequest
from anofpdm.segment.scan_input import FOREGROUND_TOLERANCE, BrainSource, strip_skull
from anofpdm.util.progress import Progress, silent

DEEPBET = "deepbet 1.0.2"


@dataclass(frozen=True)
class RawRun:
    """Where the preparation of a raw study is kept, and what receives a line per stage."""

    folder: Path | None = None
    report: Callable[[str], None] = discard
    progress: Progress = silent


def read_input(
    files: Mapping[str, str | Path],
    request: SegmentRequest,
    expects: ScanExpectation,
    foreground: tuple[float, float],  # share of the slices in calibration
    run: RawRun | None,
) -> tuple[Scan, Study | None]:
    """The scan, and the study that it was prepared from, if it was."""
    needed = request.modalities
    missing = [name for name in needed if name not in files]
    if missing:
        raise ScanError(
            f"no {' or '.join(missing)} given; the model needs {', '.join(needed)} of every scan, "
            f"and got {', '.join(files) or 'nothing'}"
        )
    paths = {name: Path(files[name]) for name in needed}
    if request.raw is Raw.NEVER or not all(path.is_file() for path in paths.values()):
        return request.brain.apply(read_scan(paths), paths[needed[0]]), None
    if request.raw is Raw.AUTO and on_one_grid([read_grid(path) for path in paths.values()]):
        scan = read_scan(paths)
        given = request.brain.mask is not None or request.brain.command is not None
        if given or expects.skull or not _is_whole_head(scan, paths, foreground):
            return request.brain.apply(scan, paths[needed[0]]), None
    return _prepare(paths, request.brain, expects, run or RawRun())


def _is_whole_head(scan: Scan, paths: Mapping[str, Path], foreground: tuple[float, float]) -> bool:
    """Far more foreground than in calibration, and more than a brain, in every series."""
    shares = [(volume > 0).mean() for volume in scan.volumes]
    if min(shares) <= max(foreground[1] + FOREGROUND_TOLERANCE, LEAST_FOREGROUND):
        return False
    volumes = zip(paths.values(), scan.volumes, strict=True)
    voxel_ml = abs(np.linalg.det(scan.grid.affine[:3, :3])) / 1000
    large = all((volume > 0).sum() * voxel_ml > 500 for volume in scan.volumes)  # phantoms and toys are smaller
    return large and not any(is_stripped(Volume(path, volume, scan.grid)) for path, volume in volumes)


def _prepare(paths: dict[str, Path], brain: BrainSource, expects: ScanExpectation, run: RawRun) -> tuple[Scan, Study]:
    if expects.template is not None:
        raise ConfigError(f"the model expects scans in {expects.template} space; register them first, with --raw never")
    method = brain.description() or DEEPBET
    tools = Preparation(_BrainFinder(brain), method, run.folder, run.report, run.progress)
    study = tools.prepare(paths, StudyOptions(not expects.skull, float(expects.field_of_view_mm)))
    return study.scan, study


class _BrainFinder:
    """The brain of a series: all of it where it is stripped; else by the user's mask or command, or by deepbet."""

    def __init__(self, brain: BrainSource):
        self.brain = brain
        self.networks: Networks | None = None  # loaded when needed

    def __call__(self, volume: Volume) -> np.ndarray:
        if self.brain.command is not None:
            import tempfile

            with tempfile.TemporaryDirectory() as folder:
                mask = read_volume(strip_skull(self.brain.command, volume.path, Path(folder)), allow_constant=True)
            return np.asarray(mask.voxels > 0)
        if self.brain.mask is not None:
            mask = read_volume(Path(self.brain.mask), allow_constant=True)
            if on_one_grid([volume.grid, mask.grid]):
                return np.asarray(mask.voxels > 0)
        if is_stripped(volume):
            return np.asarray(ndimage.binary_fill_holes(volume.voxels > 0))
        self.networks = self.networks or load_networks()
        return extract_brain(volume.voxels, volume.grid, self.networks, volume.path)
