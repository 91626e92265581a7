"""Preparation of one raw study, for segmentation and for cohorts alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.raw.brain import Networks, extract_brain, load_networks
from anofpdm.raw.preparation import Preparation, discard
from anofpdm.raw.stripped import is_stripped, on_one_grid
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.scans.found_brains import NO_BRAINS, FoundBrains
from anofpdm.scans.nifti import Volume, read_volume
from anofpdm.util.progress import Progress, silent

DEEPBET = "deepbet 1.0.2"


@dataclass(frozen=True)
class RawRun:
    """Where the preparation of a raw study is kept, and what receives a line per stage."""

    folder: Path | None = None
    report: Callable[[str], None] = discard
    progress: Progress = silent
    keep_series: bool = True  # also the registered series; else only what is slow to compute again, and pictures
    brains: FoundBrains = NO_BRAINS  # used where deepbet would find them again


class BrainFinder:
    """The brain of a series: all of it where it is stripped; else by the user's mask or command, or by deepbet."""

    def __init__(
        self,
        mask: Path | None = None,
        command: Callable[[Path], Volume] | None = None,
        description: str | None = None,  # of mask or command, for the manifest
        found: FoundBrains = NO_BRAINS,  # not found again
    ):
        self.mask, self.command, self.description = mask, command, description or DEEPBET
        self.found = found
        self.networks: Networks | None = None  # loaded when needed

    def __call__(self, volume: Volume) -> np.ndarray:
        if self.command is not None:
            return np.asarray(self.command(volume.path).voxels > 0)
        if self.mask is not None:
            mask = read_volume(self.mask, allow_constant=True)
            if on_one_grid([volume.grid, mask.grid]):
                return np.asarray(mask.voxels > 0)
        if (known := self.found.get(volume)) is not None:
            return known
        if is_stripped(volume):
            return np.asarray(ndimage.binary_fill_holes(volume.voxels > 0))
        self.networks = self.networks or load_networks()
        return extract_brain(volume.voxels, volume.grid, self.networks, volume.path)


def prepare_raw(paths: Mapping[str, Path], finder: BrainFinder, options: StudyOptions, run: RawRun) -> Study:
    tools = Preparation(finder, finder.description, run.folder, run.report, run.progress, run.keep_series)
    return tools.prepare(paths, options)
