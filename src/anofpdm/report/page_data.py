"""What the page's script draws: numbers (NaN, which JSON lacks, becomes null), and slices as tiles of one PNG."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from anofpdm.method.decision import Decisions
from anofpdm.report import wording
from anofpdm.report.display import DecisionRules, SegmentedScan, SliceSpace, slice_space
from anofpdm.scans.findings import Finding
from anofpdm.util.drawing import HEAT_COLOURS, encode_png

OVERVIEW_SLICES = 24
WHITE_PERCENTILE = 99.9  # of all map pixels
WHITE_ABOVE_HEALTHY = 2.0  # white is at least this multiple of the level of healthy slices
Number = float | None


@dataclass(frozen=True)
class Score:
    """The number by which slices are classified."""

    detector: str
    name: str
    short: str
    digits: int
    threshold: Number


@dataclass(frozen=True)
class SliceData:
    slice: int  # counted from 1
    detected: bool
    area_mm2: Number
    score: Number
    threshold: Number
    highest_threshold: Number
    decision: str  # in sentences
    end_step: Number = None  # this and what follows: of the diffusion model, where it measured the slice
    end_divergence: Number = None
    quantile: Number = None
    divergence: list[Number] | None = None  # a curve over the noise levels, as those that follow
    mse_guided: list[Number] | None = None
    mse_unguided: list[Number] | None = None


@dataclass(frozen=True)
class FindingData:
    number: int
    volume_ml: Number
    centre_mm: list[Number]
    peak: Number
    peak_mm: list[Number]
    row: int
    slice: int


@dataclass(frozen=True)
class PageData:
    modalities: list[str]
    size: int  # pixels of a slice's side
    columns: int  # of a sheet
    map_maximum: Number  # drawn white
    oriented: bool
    score: Score
    levels: list[int] | None
    slices: list[SliceData]
    findings: list[FindingData]
    volume_ml: Number
    start: int  # row shown first
    overview: list[int]  # rows


def build_page_data(result: SegmentedScan) -> PageData:
    decisions, display, evidence = result.decisions, result.display, result.decisions.evidence
    rules = DecisionRules.from_settings(result.summary["settings"])
    areas = decisions.masks.sum(axis=(1, 2)) * display.pixel_mm**2
    return PageData(
        modalities=list(display.modalities),
        size=int(display.pixels.shape[-1]),
        columns=column_count(len(display.indices)),
        map_maximum=_round(white_level(decisions.maps, display.healthy_level)),
        oriented=result.grid.oriented,
        score=_score(rules.detector, display.cosine_cut),
        levels=None if evidence is None else list(evidence.levels),
        slices=[_slice(result, row, float(area), rules) for row, area in enumerate(areas)],
        findings=[_finding(finding, result) for finding in result.findings],
        volume_ml=_round(result.volume_ml),
        start=start_row(areas, decisions.score, None if evidence is None else evidence.rows),
        overview=overview_rows(areas),
    )


def white_level(maps: np.ndarray, healthy_level: float) -> float:
    """Map value drawn white: near the maximum, but high enough that noise in a healthy scan stays dark."""
    return max(float(np.percentile(np.nan_to_num(maps), WHITE_PERCENTILE)), WHITE_ABOVE_HEALTHY * healthy_level)


def start_row(areas: np.ndarray, score: np.ndarray, explained: np.ndarray | None = None) -> int:
    """Row with the largest lesion area among the explained rows; without any lesion, the highest score."""
    rows = np.arange(len(areas)) if explained is None or not len(explained) else explained
    best = areas[rows] if areas[rows].any() else np.nan_to_num(score[rows], nan=-math.inf)
    return int(rows[np.argmax(best)])


def overview_rows(areas: np.ndarray) -> list[int]:
    """Rows for the slice overview, in order; half of them with a lesion if there are that many."""
    with_lesion, without = np.flatnonzero(areas), np.flatnonzero(areas == 0)
    limit = max(OVERVIEW_SLICES // 2, OVERVIEW_SLICES - len(without))
    rows = space_evenly(with_lesion, limit)
    return sorted([*rows, *space_evenly(without, OVERVIEW_SLICES - len(rows))])


def space_evenly(rows: np.ndarray, limit: int) -> list[int]:
    """At most `limit` of the rows, at equal distances."""
    positions = np.linspace(0, len(rows) - 1, min(limit, len(rows))).round().astype(int)
    return [int(row) for row in rows[positions]]


# ---- parts -----------------------------------------------------------------------------------------------------------


def _score(detector: str, cosine_cut: float) -> Score:
    if detector == "cosine":
        name = "Cosine similarity of the two error curves"
        return Score(detector, name, "Cosine similarity", digits=5, threshold=_round(cosine_cut, 9))
    if detector == "none":
        return Score(detector, "Maximum of the anomaly map", "Map maximum", digits=3, threshold=None)
    return Score(detector, "Log odds of being unhealthy", "Log odds", digits=3, threshold=0.0)


def _slice(result: SegmentedScan, row: int, area: float, rules: DecisionRules) -> SliceData:
    decisions, display = result.decisions, result.display
    score = decisions.measured.similarity if rules.detector == "cosine" else decisions.score
    return SliceData(
        slice=int(display.numbers[row]),
        detected=bool(decisions.detected[row]),
        area_mm2=_round(area),
        score=_round(score[row], 9),
        threshold=_round(decisions.threshold[row]),
        highest_threshold=_round(decisions.highest_threshold[row]),
        decision=wording.describe_decision(row, decisions, display, rules),
        **_measured(decisions, row),
    )


def _measured(decisions: Decisions, row: int) -> dict[str, Any]:
    """What the diffusion model measured on a slice, where it did."""
    evidence = decisions.evidence
    entry = None if evidence is None else evidence.index(row)
    if evidence is None or entry is None:
        return {}
    numbers = {name: _round(getattr(evidence, name)[entry]) for name in ("end_step", "end_divergence", "quantile")}
    curves = ("divergence", "mse_guided", "mse_unguided")
    return {**numbers, **{name: _round_all(getattr(evidence, name)[entry]) for name in curves}}


def _finding(finding: Finding, result: SegmentedScan) -> FindingData:
    display = result.display
    row = int(np.abs(display.indices - axial_index(finding.centre_mm, slice_space(result))).argmin())
    return FindingData(
        number=finding.number,
        volume_ml=_round(finding.volume_ml),
        centre_mm=_round_all(finding.centre_mm),
        peak=_round(finding.peak),
        peak_mm=_round_all(finding.peak_mm),
        row=row,
        slice=int(display.numbers[row]),
    )


def axial_index(position_mm: Iterable[float], space: SliceSpace) -> int:
    """Position of the axial slice that contains a point of the result, counted from 0 at the inferior end."""
    grid = space.grid
    voxel = np.linalg.solve(grid.affine, space.matrix @ [*position_mm, 1.0])
    axis = grid.axial_axis
    index = round(float(voxel[axis]))
    upwards = grid.affine[2, axis] > 0
    return index if upwards else grid.shape[axis] - 1 - index


def _round_all(values: Iterable[float]) -> list[Number]:
    return [_round(value) for value in values]


def _round(value: float, digits: int = 6) -> Number:
    """To significant digits; None if not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


# ---- sheets ----------------------------------------------------------------------------------------------------------


def encode_sheets(result: SegmentedScan, map_maximum: float) -> dict[str, bytes]:
    """PNGs by name: slices of each modality in grey, maps in heat colours up to the maximum, masks in one bit."""
    display, decisions = result.display, result.decisions
    sheets = {}
    for number in range(len(display.modalities)):
        shades = np.clip(display.pixels[:, number].astype(np.float32), -1, 1) + 1
        sheets[str(number)] = _tile(np.round(shades * (255 / 2)))
    sheets["map"] = _tile(np.round(np.clip(np.nan_to_num(decisions.maps) / max(map_maximum, 1e-12), 0, 1) * 255))
    sheets["map"].putpalette(HEAT_COLOURS.tobytes())
    sheets["mask"] = _tile(decisions.masks * 255).convert("1")
    return {name: encode_png(image) for name, image in sheets.items()}


def _tile(slices: np.ndarray) -> Image.Image:
    """[n, H, W] from 0 to 255 -> 8-bit image of rows * H x columns * W pixels; unused tiles are zero."""
    n, height, width = slices.shape
    columns = column_count(n)
    rows = math.ceil(n / columns)
    padded = np.zeros((rows * columns, height, width), np.uint8)
    padded[:n] = slices
    tiled = padded.reshape(rows, columns, height, width).swapaxes(1, 2)
    return Image.fromarray(tiled.reshape(rows * height, columns * width))


def column_count(slices: int) -> int:
    """Columns of a nearly square sheet."""
    return max(1, math.ceil(math.sqrt(slices)))
