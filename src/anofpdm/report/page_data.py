"""The numbers of a page: what its script draws from. NaN, which is no JSON, becomes null."""

import math
from collections.abc import Iterable
from typing import Any

import nibabel as nib
import numpy as np

from anofpdm.report import wording
from anofpdm.report.display import Curves, SegmentedScan
from anofpdm.report.findings import Finding
from anofpdm.report.sheets import columns_of
from anofpdm.scans import Grid

GLANCE = 24  # slices at a glance
WHITE_SHARE = 99.9  # percentile of all maps that is drawn white
ABOVE_HEALTHY = 2.0  # times what healthy slices reach: at least this is white
SCORES = {  # whole name, short name, digits
    "curve": ("Log odds of being unhealthy", "Log odds", 3),
    "cosine": ("Cosine of the two error curves", "Cosine", 5),
    "none": ("Largest value of the map", "Largest value", 3),
}


def build_page_data(result: SegmentedScan) -> dict[str, Any]:
    decisions, display, curves = result.decisions, result.display, result.display.curves
    areas = decisions.masks.sum(axis=(1, 2)) * display.pixel_mm**2
    return {
        "engine": display.engine,
        "modalities": list(display.modalities),
        "size": int(display.pixels.shape[-1]),
        "columns": columns_of(len(display.indices)),
        "highest": _rounded(highest_shown(decisions.maps, display.healthy_level)),
        "sides": wording.sides_known(result),
        "score": _score(result),
        "levels": None if curves is None else list(curves.levels),
        "slices": [_slice(result, row, float(areas[row])) for row in range(len(areas))],
        "findings": [_finding(one, result) for one in result.findings],
        "volume_ml": _rounded(result.volume_ml),
        "detected": int(decisions.detected.sum()),
        "start": start_row(areas, decisions.score, None if curves is None else curves.explained),
        "glance": glance_rows(areas),
    }


def highest_shown(maps: np.ndarray, healthy_level: float) -> float:
    """What is drawn white: nearly the highest, but a healthy scan is not stretched until its noise shines."""
    return max(float(np.percentile(np.nan_to_num(maps), WHITE_SHARE)), ABOVE_HEALTHY * healthy_level)


def start_row(areas: np.ndarray, score: np.ndarray, asked: np.ndarray | None = None) -> int:
    """The slice with most lesion, of those that the diffusion model explains; where none has any, the one that is most
    unhealthy."""
    rows = np.arange(len(areas)) if asked is None or not asked.any() else np.flatnonzero(asked)
    best = areas[rows] if areas[rows].any() else np.nan_to_num(score[rows], nan=-math.inf)
    return int(rows[np.argmax(best)])


def glance_rows(areas: np.ndarray) -> list[int]:
    """Slices to show beside each other: half of them with a lesion, where there are such, and in order."""
    with_lesion, without = np.flatnonzero(areas), np.flatnonzero(areas == 0)
    most = max(GLANCE // 2, GLANCE - len(without))
    chosen = spread(with_lesion, most)
    return sorted([*chosen, *spread(without, GLANCE - len(chosen))])


def spread(rows: np.ndarray, most: int) -> list[int]:
    """At most so many of them, at equal distance."""
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    return [int(row) for row in rows[places]]


# ---- parts -----------------------------------------------------------------------------------------------------------


def _score(result: SegmentedScan) -> dict[str, Any]:
    """Which score decided, and where its cut is."""
    detector = result.summary["settings"].get("detector", "")
    cut = {"cosine": result.display.cosine_cut, "none": math.nan}.get(detector, 0.0)
    name, short, digits = SCORES.get(detector, ("Score", "Score", 3))
    return {"detector": detector, "name": name, "short": short, "digits": digits, "cut": _rounded(cut, 9)}


def _slice(result: SegmentedScan, row: int, area: float) -> dict[str, Any]:
    decisions, display = result.decisions, result.display
    settings = result.summary["settings"]
    score = decisions.similarity if settings.get("detector") == "cosine" else decisions.score
    return {
        "slice": int(display.indices[row]),
        "detected": bool(decisions.detected[row]),
        "area_mm2": _rounded(area),
        "score": _rounded(score[row], 9),
        "end_step": _rounded(decisions.end_step[row]),
        "end_divergence": _rounded(decisions.end_divergence[row]),
        "quantile": _rounded(decisions.quantile[row]),
        "threshold": _rounded(decisions.threshold[row]),
        "said": wording.decision(row, decisions, display, settings),
        **(_curves(display.curves, row) if display.curves is not None and display.curves.has(row) else {}),
    }


def _curves(curves: Curves, row: int) -> dict[str, list[float | None]]:
    return {
        "divergence": _all_rounded(curves.divergence[row]),
        "mse_guided": _all_rounded(curves.mse_guided[row]),
        "mse_unguided": _all_rounded(curves.mse_unguided[row]),
    }


def _finding(finding: Finding, result: SegmentedScan) -> dict[str, Any]:
    indices = result.display.indices
    row = int(np.abs(indices - axial_index(finding.centre_mm, result.grid)).argmin())
    return {
        "number": finding.number,
        "volume_ml": _rounded(finding.volume_ml),
        "centre_mm": _all_rounded(finding.centre_mm),
        "peak": _rounded(finding.peak),
        "peak_mm": _all_rounded(finding.peak_mm),
        "row": row,
        "slice": int(indices[row]),
    }


def axial_index(place_mm: Iterable[float], grid: Grid) -> int:
    """Which axial slice a place is in, counted from the inferior end."""
    voxel = np.linalg.solve(grid.affine, [*place_mm, 1.0])
    axis, upwards = axial_axis(grid)
    index = round(float(voxel[axis]))
    return index if upwards else grid.shape[axis] - 1 - index


def axial_axis(grid: Grid) -> tuple[int, bool]:
    """The array axis that runs between feet and head, and whether it runs upwards."""
    orientation = nib.io_orientation(grid.affine)  # [3, 2]: world axis and direction of each array axis
    axis = int(np.flatnonzero(orientation[:, 0] == 2)[0])
    return axis, bool(orientation[axis, 1] > 0)


def _all_rounded(values: Iterable[float]) -> list[float | None]:
    return [_rounded(value) for value in values]


def _rounded(value: float, digits: int = 6) -> float | None:
    """So many digits that count: a page needs no more."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
