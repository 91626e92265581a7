"""Data that the overview picture and the report page of a segmented scan are drawn from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from anofpdm.method.decision import Decisions
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
class DisplayData:
    """What pictures need in addition to the decisions."""

    pixels: np.ndarray  # [n, M, H, W] of the scored modalities, in [-1, 1]; half precision suffices
    indices: np.ndarray  # [n], axial positions in the scan, counted from 0 at the inferior end
    pixel_mm: float
    modalities: tuple[str, ...]  # M, the scored ones
    space: SliceSpace
    cosine_cut: float  # unhealthy at or below, with the cosine detector
    healthy_level: float = 0.0  # nearly all map pixels of healthy slices are below it
    engine: str = "diffusion"  # that made the masks

    @property
    def numbers(self) -> np.ndarray:
        """[n]: slices as people count them, from 1 at the inferior end."""
        return self.indices + 1


class SegmentedScan(Protocol):
    """The parts of a segmentation that its report shows."""

    @property
    def grid(self) -> Grid: ...
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def decisions(self) -> Decisions: ...
    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def display(self) -> DisplayData: ...
    @property
    def pictures(self) -> Mapping[str, bytes]: ...
    @property
    def volume_ml(self) -> float: ...
    @property
    def estimated_dice(self) -> float: ...


@dataclass(frozen=True)
class DecisionRules:
    """How slices were classified and masks thresholded, from the settings in a summary."""

    detector: str
    threshold: str
    peak_share: float
    context_mm: float
    threshold_chosen: bool = False  # of a student, by the user

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "DecisionRules":
        decision = settings.get("decision", {})
        mask = decision.get("mask", {})
        return cls(
            detector=settings.get("detector", ""),
            threshold=mask.get("threshold", ""),
            peak_share=mask.get("peak_share", 0.0),
            context_mm=decision.get("context_mm", 0.0),
            threshold_chosen="threshold_probability" in settings,
        )

    @property
    def detects(self) -> bool:
        return self.detector != "none"
