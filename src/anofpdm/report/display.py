"""What a picture or a page of a segmented scan is drawn from."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from anofpdm.method.decision import Decisions
from anofpdm.method.evidence import Evidence
from anofpdm.report.findings import Finding
from anofpdm.scans import Grid


@dataclass(frozen=True)
class Curves:
    """What the network said of each slice, level by level, at the strength that was used."""

    levels: tuple[int, ...]  # K
    divergence: np.ndarray  # [n, K], M_t
    mse_guided: np.ndarray  # [n, K]
    mse_unguided: np.ndarray  # [n, K]
    explained: np.ndarray | None = None  # bool [n], slices of which it is known; none given: all

    @classmethod
    def from_evidence(cls, evidence: Evidence) -> "Curves":
        """Of evidence at one strength."""
        curves = (evidence.divergence[:, 0], evidence.mse_guided[:, 0], evidence.mse_unguided)
        return cls(evidence.settings.levels, *(curve.cpu().double().numpy() for curve in curves))

    def expand(self, rows: np.ndarray, count: int) -> "Curves":
        """These were of some rows; now of all slices, so many, and the others are not known."""

        def among_all(curves: np.ndarray) -> np.ndarray:
            whole = np.full((count, curves.shape[1]), np.nan)
            whole[rows] = curves
            return whole

        return Curves(
            self.levels,
            among_all(self.divergence),
            among_all(self.mse_guided),
            among_all(self.mse_unguided),
            explained=np.isin(np.arange(count), rows),
        )

    def has(self, row: int) -> bool:
        return self.explained is None or bool(self.explained[row])


@dataclass(frozen=True)
class DisplayData:
    """What pictures need besides the decisions."""

    pixels: np.ndarray  # [n, M, H, W] of the scored modalities, in [-1, 1]; half precision is plenty
    indices: np.ndarray  # [n]
    pixel_mm: float
    modalities: tuple[str, ...]  # M, the scored ones
    cosine_cut: float  # at or below: called unhealthy by the cosine detector
    healthy_level: float = 0.0  # what nearly all pixels of healthy slices' maps stay below
    curves: Curves | None = None  # none: the diffusion model was not asked
    engine: str = "diffusion"  # what drew the masks


class SegmentedScan(Protocol):
    """Of a segmentation, what is told on its page."""

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
    def volume_ml(self) -> float: ...
