"""Overview picture of a segmented scan: slices, anomaly maps, mask outlines, lesion area and log odds by slice."""

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.method.decision import Decisions
from anofpdm.util.drawing import (
    BACKGROUND,
    BLUE,
    FOREGROUND,
    MUTED,
    ORANGE,
    Line,
    chart,
    draw_outline,
    encode_png,
    font,
    grey_tile,
    heat_tile,
)

TILE, GAP, COLUMNS, CAPTION, HEADING = 150, 6, 8, 18, 28
WHITE_PERCENTILE = 99.9  # of all map pixels


def draw_overview(
    pixels: np.ndarray,  # [n, H, W] of one modality, in [-1, 1]
    indices: np.ndarray,  # [n]
    decisions: Decisions,
    title: str,
    pixel_mm: float,
) -> bytes:
    rows = select_slices(decisions.masks.sum(axis=(1, 2)))
    width = GAP + COLUMNS * (TILE + GAP)
    charts = [_draw_areas(indices, decisions, pixel_mm, width // 2), _draw_scores(indices, decisions, width // 2)]
    height = HEADING + 2 * (TILE + GAP) + CAPTION + charts[0].height + GAP
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, 6), title, FOREGROUND, font(13))
    maximum = float(np.percentile(decisions.maps, WHITE_PERCENTILE))
    for column, row in enumerate(rows):
        left, top = GAP + column * (TILE + GAP), HEADING
        label = "" if decisions.detected[row] else ", healthy"
        pen.text((left, top), f"slice {indices[row]}{label}", MUTED, font())
        mask = decisions.masks[row]
        sheet.paste(draw_outline(grey_tile(pixels[row], TILE), mask), (left, top + CAPTION))
        heat = heat_tile(decisions.maps[row], maximum, TILE)
        sheet.paste(draw_outline(heat, mask, FOREGROUND), (left, top + CAPTION + TILE + GAP))
    for column, image in enumerate(charts):
        sheet.paste(image, (column * (width // 2), height - image.height - GAP))
    return encode_png(sheet)


def select_slices(areas: np.ndarray) -> np.ndarray:
    """Evenly spaced rows among the slices with a lesion, or among all if none has a lesion."""
    candidates = np.flatnonzero(areas) if areas.any() else np.arange(len(areas))
    return candidates[np.unique(np.linspace(0, len(candidates) - 1, min(COLUMNS, len(candidates))).round().astype(int))]


def _draw_areas(indices: np.ndarray, decisions: Decisions, pixel_mm: float, width: int) -> Image.Image:
    area = decisions.masks.sum(axis=(1, 2)) * pixel_mm**2 / 100
    return chart([Line(indices, area, ORANGE)], "Lesion area (cm2)", size=(width, 200), xlabel="slice")


def _draw_scores(indices: np.ndarray, decisions: Decisions, width: int) -> Image.Image:
    lines = [Line(indices, decisions.log_odds, BLUE), Line([indices[0], indices[-1]], [0, 0], MUTED)]
    return chart(lines, "Log odds of being unhealthy, threshold 0", size=(width, 200), xlabel="slice")
