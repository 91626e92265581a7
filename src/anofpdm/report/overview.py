"""One picture of a segmented scan: slices, their anomaly maps, the mask's outline, and the decisions along the head."""

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
WHITE_SHARE = 99.9  # percentile of all maps that is drawn white


def draw_overview(
    pixels: np.ndarray,  # [n, H, W] of one modality, in [-1, 1]
    indices: np.ndarray,  # [n]
    decisions: Decisions,
    title: str,
    pixel_mm: float,
) -> bytes:
    shown = chosen_slices(decisions.masks.sum(axis=(1, 2)))
    width = GAP + COLUMNS * (TILE + GAP)
    charts = [_areas(indices, decisions, pixel_mm, width // 2), _scores(indices, decisions, width // 2)]
    height = HEADING + 2 * (TILE + GAP) + CAPTION + charts[0].height + GAP
    sheet = Image.new("RGB", (width, height), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, 6), title, FOREGROUND, font(13))
    highest = float(np.percentile(decisions.maps, WHITE_SHARE))
    for column, number in enumerate(shown):
        left, top = GAP + column * (TILE + GAP), HEADING
        word = "" if decisions.detected[number] else ", healthy"
        pen.text((left, top), f"slice {indices[number]}{word}", MUTED, font())
        mask = decisions.masks[number]
        sheet.paste(draw_outline(grey_tile(pixels[number], TILE), mask), (left, top + CAPTION))
        heat = heat_tile(decisions.maps[number], highest, TILE)
        sheet.paste(draw_outline(heat, mask, FOREGROUND), (left, top + CAPTION + TILE + GAP))
    for number, one in enumerate(charts):
        sheet.paste(one, (number * (width // 2), height - one.height - GAP))
    return encode_png(sheet)


def chosen_slices(areas: np.ndarray) -> np.ndarray:
    """Spread over the slices with a lesion; over all where none has one."""
    among = np.flatnonzero(areas) if areas.any() else np.arange(len(areas))
    return among[np.unique(np.linspace(0, len(among) - 1, min(COLUMNS, len(among))).round().astype(int))]


def _areas(indices: np.ndarray, decisions: Decisions, pixel_mm: float, width: int) -> Image.Image:
    area = decisions.masks.sum(axis=(1, 2)) * pixel_mm**2 / 100
    return chart([Line(indices, area, ORANGE)], "Lesion area in cm2", size=(width, 200), xlabel="slice")


def _scores(indices: np.ndarray, decisions: Decisions, width: int) -> Image.Image:
    lines = [Line(indices, decisions.log_odds, BLUE), Line([indices[0], indices[-1]], [0, 0], MUTED)]
    return chart(lines, "Log odds of being unhealthy, cut at 0", size=(width, 200), xlabel="slice")
