"""Overview picture of a segmented scan: slices, anomaly maps, mask outlines, lesion area and log odds by slice."""

import numpy as np
from PIL import Image

from anofpdm.method.decision import Decisions
from anofpdm.report.display import DisplayData
from anofpdm.report.page_data import white_level
from anofpdm.util import drawing

TILE, COLUMNS = 150, 8
CHART = (COLUMNS * TILE // 2 + (COLUMNS // 2 - 1) * drawing.GAP, 200)  # two are as wide as all columns


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
    maximum = white_level(decisions.maps, display.rules.healthy_level)
    slices, maps, sides = [], [], "RL" if oriented else ""
    for row in drawing.choose_slices(shown.sum(axis=(1, 2)), COLUMNS):
        mask = decisions.masks[row]
        outlines = {drawing.OUTLINE: mask} if truth is None else {drawing.BLUE: truth[row], drawing.OUTLINE: mask}
        tile = drawing.annotate(drawing.grey_tile(display.pixels[row, 0], TILE), outlines, sides)
        caption = f"slice {display.numbers[row]}{'' if decisions.detected[row] else ', healthy'}"
        slices.append(drawing.captioned(tile, caption))
        heat = drawing.heat_tile(decisions.maps[row], maximum, TILE)
        maps.append(drawing.annotate(heat, {drawing.FOREGROUND: mask}, sides))
    return drawing.draw_sheet([slices, maps, _draw_charts(display, decisions)], title)


def _draw_charts(display: DisplayData, decisions: Decisions) -> list[Image.Image]:
    numbers = display.numbers
    areas = drawing.Line(numbers, decisions.masks.sum(axis=(1, 2)) * display.pixel_mm**2 / 100, drawing.ORANGE)
    odds = drawing.Line(numbers, decisions.log_odds, drawing.BLUE)
    zero = drawing.Line([numbers[0], numbers[-1]], [0, 0], drawing.MUTED)
    charts = {"Lesion area (cm2)": [areas], "Log odds of being unhealthy, threshold 0": [odds, zero]}
    return [drawing.chart(lines, title, size=CHART, xlabel="slice") for title, lines in charts.items()]
