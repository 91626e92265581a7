"""What the page's script draws: numbers (NaN, which JSON lacks, becomes null), and slices as tiles of one PNG."""

import math
from typing import Any

import numpy as np
from PIL import Image

from anofpdm.report import wording
from anofpdm.report.display import DecisionRules, SegmentedScan
from anofpdm.util.drawing import HEAT_COLOURS, encode_png, grey_levels, heat_levels, space_evenly
from anofpdm.util.files import without_nan

OVERVIEW_SLICES = 24
WHITE_PERCENTILE = 99.9  # of all map pixels
WHITE_ABOVE_HEALTHY = 2.0  # white is at least this multiple of the level of healthy slices


def build_page_data(result: SegmentedScan) -> dict[str, Any]:
    """As page.js reads it."""
    decisions, display, evidence = result.decisions, result.display, result.decisions.evidence
    areas = decisions.masks.sum(axis=(1, 2)) * display.pixel_mm**2
    data = {
        "size": display.pixels.shape[-1],  # pixels of a slice's side
        "columns": column_count(len(display.indices)),  # of a sheet
        "map_maximum": white_level(decisions.maps, display.rules.healthy_level),  # drawn white
        "oriented": result.grid.oriented,
        "score": _score(display.rules),
        "levels": None if evidence is None else list(evidence.levels),
        "slices": [_slice(result, row, float(area)) for row, area in enumerate(areas)],
        "start": start_row(areas, decisions.score, None if evidence is None else evidence.rows),
        "overview": overview_rows(areas),
    }
    return dict(without_nan(data))


def white_level(maps: np.ndarray, healthy_level: float) -> float:
    """Map value drawn white: near the maximum, but high enough that noise in a healthy scan stays dark."""
    return max(float(np.percentile(np.nan_to_num(maps), WHITE_PERCENTILE)), WHITE_ABOVE_HEALTHY * healthy_level)


def start_row(areas: np.ndarray, score: np.ndarray, explained: np.ndarray | None = None) -> int:
    """Row shown first: that with the largest lesion area among the explained rows; without any lesion, the highest
    score."""
    rows = np.arange(len(areas)) if explained is None or not len(explained) else explained
    best = areas[rows] if areas[rows].any() else np.nan_to_num(score[rows], nan=-math.inf)
    return int(rows[np.argmax(best)])


def overview_rows(areas: np.ndarray) -> list[int]:
    """Rows for the slice overview, in order; half of them with a lesion if there are that many."""
    with_lesion, without = np.flatnonzero(areas), np.flatnonzero(areas == 0)
    limit = max(OVERVIEW_SLICES // 2, OVERVIEW_SLICES - len(without))
    rows = space_evenly(with_lesion, limit)
    return sorted([*rows.tolist(), *space_evenly(without, OVERVIEW_SLICES - len(rows)).tolist()])


# ---- parts -----------------------------------------------------------------------------------------------------------


def _score(rules: DecisionRules) -> dict[str, Any]:
    """The number by which slices are classified."""
    name, short, digits, threshold = {
        "cosine": ("Cosine similarity of the two error curves", "Cosine similarity", 5, rules.cosine_cut),
        "none": ("Maximum of the anomaly map", "Map maximum", 3, None),
    }.get(rules.decision.detector, ("Log odds of being unhealthy", "Log odds", 3, 0.0))
    return {"detector": rules.decision.detector, "name": name, "short": short, "digits": digits, "threshold": threshold}


def _slice(result: SegmentedScan, row: int, area: float) -> dict[str, Any]:
    decisions, display = result.decisions, result.display
    score = decisions.measured.similarity if display.rules.decision.detector == "cosine" else decisions.score
    data = {
        "slice": int(display.numbers[row]),
        "detected": bool(decisions.detected[row]),
        "area_mm2": area,
        "score": float(score[row]),
        "threshold": float(decisions.threshold[row]),
        "highest_threshold": float(decisions.highest_threshold[row]),
        "decision": wording.describe_decision(row, decisions, display),  # in sentences
    }
    evidence = decisions.evidence
    if evidence is None or (entry := evidence.index(row)) is None:
        return data
    # What the diffusion model measured on the slice: numbers, and curves over the noise levels.
    names = ("end_step", "end_divergence", "quantile", "divergence", "mse_guided", "mse_unguided")
    return data | {name: getattr(evidence, name)[entry].tolist() for name in names}


# ---- sheets ----------------------------------------------------------------------------------------------------------


def encode_sheets(result: SegmentedScan, map_maximum: float) -> dict[str, bytes]:
    """PNGs by name: slices of each modality in grey, maps in heat colours up to the maximum, masks in one bit."""
    display, decisions = result.display, result.decisions
    sheets = {}
    for number in range(len(display.modalities)):
        sheets[str(number)] = _tile(grey_levels(display.pixels[:, number].astype(np.float32)))
    sheets["map"] = _tile(heat_levels(np.nan_to_num(decisions.maps), map_maximum))
    sheets["map"].putpalette(HEAT_COLOURS.tobytes())
    sheets["mask"] = _tile(decisions.masks * np.uint8(255)).convert("1")
    return {name: encode_png(image) for name, image in sheets.items()}


def _tile(slices: np.ndarray) -> Image.Image:
    """uint8 [n, H, W] -> image of rows * H x columns * W pixels; unused tiles are zero."""
    n, height, width = slices.shape
    columns = column_count(n)
    sheet = Image.new("L", (columns * width, math.ceil(n / columns) * height))
    for number, pixels in enumerate(slices):
        sheet.paste(Image.fromarray(pixels), (number % columns * width, number // columns * height))
    return sheet


def column_count(slices: int) -> int:
    """Columns of a nearly square sheet."""
    return max(1, math.ceil(math.sqrt(slices)))
