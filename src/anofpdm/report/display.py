"""Data that the overview picture and the report page of a segmented scan are drawn from."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anofpdm.method.decision import Decisions, DecisionSettings
from anofpdm.raw.study import PlacedSeries
from anofpdm.report.summary import Summary
from anofpdm.scans import Grid
from anofpdm.scans.findings import Finding


@dataclass(frozen=True)
class SliceSpace:
    """Where the slices of the network lie. Of a raw study, they may be divided or in template space; the result is on
    the grid of the reference."""

    grid: Grid
    matrix: np.ndarray  # [4, 4], millimetres of the result to millimetres of the grid

    def central_rows(self, findings: Iterable[Finding], indices: np.ndarray) -> list[int]:
        """Of the slices at these axial positions, the nearest to the centre of each finding."""
        axial = [self._axial_index(finding.centre_mm) for finding in findings]
        return [int(np.abs(indices - index).argmin()) for index in axial]

    def _axial_index(self, position_mm: Iterable[float]) -> int:
        """Position of the axial slice that contains a point of the result, counted from 0 at the inferior end."""
        voxel = np.linalg.solve(self.grid.affine, self.matrix @ [*position_mm, 1.0])
        axis = self.grid.axial_axis
        index = round(float(voxel[axis]))
        upwards = self.grid.affine[2, axis] > 0
        return index if upwards else self.grid.shape[axis] - 1 - index


@dataclass(frozen=True)
class DecisionRules:
    """How an engine classified the slices and thresholded the maps."""

    engine: str
    decision: DecisionSettings = field(
        default_factory=DecisionSettings
    )  # of the diffusion engine, with the detector that was used
    cosine_cut: float = math.nan  # unhealthy at or below, with the cosine detector
    healthy_level: float = 0.0  # nearly all map pixels of healthy slices are below it
    threshold_chosen: bool = False  # of a student, by the user


@dataclass(frozen=True)
class DisplayData:
    """What pictures need in addition to the decisions."""

    pixels: np.ndarray  # [n, M, H, W] of the scored modalities, in [-1, 1]; half precision suffices
    indices: np.ndarray  # [n], axial positions in the scan, counted from 0 at the inferior end
    pixel_mm: float
    modalities: tuple[str, ...]  # M, the scored ones
    space: SliceSpace
    rules: DecisionRules

    @property
    def numbers(self) -> np.ndarray:
        """[n]: slices as people count them, from 1 at the inferior end."""
        return self.indices + 1


@dataclass(frozen=True)
class SegmentedScan:
    """A segmentation, as its report shows it."""

    mask: np.ndarray  # bool [i, j, k], on the grid of the scan
    anomaly_map: np.ndarray  # float32 [i, j, k]
    grid: Grid
    slices: list[dict[str, Any]]  # rows of slices.csv
    findings: list[Finding]  # largest first
    decisions: Decisions  # on the slices of the network
    summary: Summary
    display: DisplayData
    series: tuple[PlacedSeries, ...] = ()  # of a raw study, the reference first; `grid` is that of the reference
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # PNG by series of a raw study: brain and registration

    @property
    def volume_ml(self) -> float:
        return float(self.mask.sum() * self.grid.voxel_ml)

    @property
    def estimated_dice(self) -> float:
        """Of the scan, without a manual mask: the mean over slices, weighted by the area of their masks. NaN where no
        lesion was found, or the engine has no estimate."""
        return average_estimate(self.decisions)


def average_estimate(decisions: Decisions) -> float:
    """Mean estimated DICE of the slices, weighted by the area of their masks; NaN if no slice has an estimate."""
    estimates = decisions.estimated_dice
    if estimates is None or np.isnan(estimates).all():
        return math.nan
    known, areas = ~np.isnan(estimates), decisions.masks.sum(axis=(1, 2))
    return float(np.average(estimates[known], weights=areas[known]))
