"""Overview picture of a segmented scan: slices, anomaly maps, mask outlines, lesion area and log odds by slice."""

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.method.decision import Decisions
from anofpdm.report.display import DisplayData
from anofpdm.report.page_data import WHITE_PERCENTILE, space_evenly
from anofpdm.util import drawing

TILE, GAP, COLUMNS, CAPTION, HEADING = 150, 6, 8, 18, 28


def draw_overview(
    display: DisplayData,
    decisions: Decisions,
    title: str,
    *,
    oriented: bool,
    truth: np.ndarray | None = None,  # bool [n, H, W], where the true lesion is known
) -> bytes:
    """Of the first modality."""
    shown = decisions.masks if truth is None else decisions.masks | truth
    areas = shown.sum(axis=(1, 2))
    rows = space_evenly(np.flatnonzero(areas) if areas.any() else np.arange(len(areas)), COLUMNS)
    width = GAP + COLUMNS * (TILE + GAP)
    charts = drawing.hstack_images(_draw_charts(display, decisions, width // 2))
    height = HEADING + 2 * (TILE + GAP) + CAPTION + charts.height + GAP
    sheet = Image.new("RGB", (width, height), drawing.BACKGROUND)
    sheet.paste(charts, (0, height - charts.height - GAP))
    pen = ImageDraw.Draw(sheet)
    pen.text((GAP, 6), title, drawing.FOREGROUND, drawing.font(13))
    maximum = float(np.percentile(decisions.maps, WHITE_PERCENTILE))
    for column, row in enumerate(rows):
        left, top = GAP + column * (TILE + GAP), HEADING
        label = "" if decisions.detected[row] else ", healthy"
        pen.text((left, top), f"slice {display.numbers[row]}{label}", drawing.MUTED, drawing.font())
        mask, slice_tile = decisions.masks[row], drawing.grey_tile(display.pixels[row, 0], TILE)
        if truth is not None:
            slice_tile = drawing.draw_outline(slice_tile, truth[row], drawing.BLUE)
        heat = drawing.heat_tile(decisions.maps[row], maximum, TILE)
        tiles = drawing.draw_outline(slice_tile, mask), drawing.draw_outline(heat, mask, drawing.FOREGROUND)
        for number, tile in enumerate(tiles):
            sheet.paste(drawing.mark_sides(tile) if oriented else tile, (left, top + CAPTION + number * (TILE + GAP)))
    return drawing.encode_png(sheet)


def _draw_charts(display: DisplayData, decisions: Decisions, width: int) -> list[Image.Image]:
    numbers = display.numbers
    areas = drawing.Line(numbers, decisions.masks.sum(axis=(1, 2)) * display.pixel_mm**2 / 100, drawing.ORANGE)
    odds = drawing.Line(numbers, decisions.log_odds, drawing.BLUE)
    zero = drawing.Line([numbers[0], numbers[-1]], [0, 0], drawing.MUTED)
    charts = {"Lesion area (cm2)": [areas], "Log odds of being unhealthy, threshold 0": [odds, zero]}
    return [drawing.chart(lines, title, size=(width, 200), xlabel="slice") for title, lines in charts.items()]
