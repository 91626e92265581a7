"""Overview picture of a segmented scan: slices, anomaly maps, mask outlines, lesion area and log odds by slice."""

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.method.decision import Decisions
from anofpdm.report.page_data import space_evenly
from anofpdm.util import drawing

TILE, GAP, COLUMNS, CAPTION, HEADING = 150, 6, 8, 18, 28
WHITE_PERCENTILE = 99.9  # of all map pixels


def draw_overview(
    pixels: np.ndarray,  # [n, H, W] of one modality, in [-1, 1]
    indices: np.ndarray,  # [n]
    decisions: Decisions,
    title: str,
    pixel_mm: float,
) -> bytes:
    areas = decisions.masks.sum(axis=(1, 2))
    rows = space_evenly(np.flatnonzero(areas) if areas.any() else np.arange(len(areas)), COLUMNS)
    width = GAP + COLUMNS * (TILE + GAP)
    charts = _draw_charts(indices, decisions, pixel_mm, width // 2)
    height = HEADING + 2 * (TILE + GAP) + CAPTION + charts[0].height + GAP
    sheet = Image.new("RGB", (width, height), drawing.BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, 6), title, drawing.FOREGROUND, drawing.font(13))
    maximum = float(np.percentile(decisions.maps, WHITE_PERCENTILE))
    for column, row in enumerate(rows):
        left, top = GAP + column * (TILE + GAP), HEADING
        label = "" if decisions.detected[row] else ", healthy"
        pen.text((left, top), f"slice {indices[row]}{label}", drawing.MUTED, drawing.font())
        mask = decisions.masks[row]
        sheet.paste(drawing.draw_outline(drawing.grey_tile(pixels[row], TILE), mask), (left, top + CAPTION))
        heat = drawing.heat_tile(decisions.maps[row], maximum, TILE)
        sheet.paste(drawing.draw_outline(heat, mask, drawing.FOREGROUND), (left, top + CAPTION + TILE + GAP))
    for column, image in enumerate(charts):
        sheet.paste(image, (column * (width // 2), height - image.height - GAP))
    return drawing.encode_png(sheet)


def _draw_charts(indices: np.ndarray, decisions: Decisions, pixel_mm: float, width: int) -> list[Image.Image]:
    areas = drawing.Line(indices, decisions.masks.sum(axis=(1, 2)) * pixel_mm**2 / 100, drawing.ORANGE)
    odds = drawing.Line(indices, decisions.log_odds, drawing.BLUE)
    zero = drawing.Line([indices[0], indices[-1]], [0, 0], drawing.MUTED)
    charts = {"Lesion area (cm2)": [areas], "Log odds of being unhealthy, threshold 0": [odds, zero]}
    return [drawing.chart(lines, title, size=(width, 200), xlabel="slice") for title, lines in charts.items()]
