"""A scan that was read for a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from anofpdm.raw.study import Study
from anofpdm.report.display import SliceSpace
from anofpdm.scans import AxialPlanes, Grid, Scan

Files = Mapping[str, str | Path]


@dataclass(frozen=True)
class ReadScan:
    """Volumes on one grid, and where they come from."""

    scan: Scan
    files: Files  # all that were given, by modality
    size: int  # slices are size x size
    study: Study | None = None  # that the scan was prepared from; None: the files are on one grid already

    @property
    def where(self) -> str | Path:
        """The file to name in messages: that of the reference."""
        return self.files[self.scan.modalities[0]]

    @cached_property
    def planes(self) -> AxialPlanes:
        return AxialPlanes(self.scan.grid, self.size)

    @property
    def grid(self) -> Grid:
        """Of the results."""
        return self.scan.grid if self.study is None else self.study.reference.grid

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
        scan = self.scan
        brain = self.study.brain if self.study else np.logical_or.reduce([volume > 0 for volume in scan.volumes])
        return float(brain.sum() * voxel_ml(scan.grid))


def voxel_ml(grid: Grid) -> float:
    return float(abs(np.linalg.det(grid.affine[:3, :3])) / 1000)
