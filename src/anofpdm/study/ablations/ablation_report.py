"""Report of the ablations: a figure and a table each, all numbers as JSON, and a page."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.report.render import render
from anofpdm.study.ablations.charts import FIGURES
from anofpdm.study.ablations.levels import KINDS
from anofpdm.study.ablations.run_ablations import Ablations
from anofpdm.util.drawing import (
    BACKGROUND,
    FOREGROUND,
    MUTED,
    draw_outline,
    encode_png,
    font,
    grey_tile,
    heat_tile,
    mark_sides,
)
from anofpdm.util.files import encode_csv, without_nan, write_atomically

PAGE, NUMBERS = "index.html", "ablations.json"
TILE, GAP, CAPTION, SIDE = 112, 4, 18, 66
WHITE_PERCENTILE = 99.5  # of a tile


def write_report(ablations: Ablations, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    pictures = {
        table.name: encode_png(FIGURES[table.name](table) if table.name in FIGURES else draw_gallery(ablations))
        for table in ablations.tables
    }
    for table in ablations.tables:
        write_atomically(out / f"{table.name}.png", pictures[table.name])
        rows = (["" if value is None else value for value in without_nan(row)] for row in table.rows)
        write_atomically(out / f"{table.name}.csv", encode_csv(table.columns, rows))
    write_atomically(out / NUMBERS, to_json(ablations).encode())
    page = render(
        "ablations.html", settings=ablations.settings, tables=ablations.tables, pictures=pictures, numbers=NUMBERS
    )
    write_atomically(out / PAGE, page.encode())


def draw_gallery(ablations: Ablations) -> Image.Image:
    """A block per slice: S_t above the gradient, input and ground truth on the left."""
    study, rows = ablations.study, ablations.tables[-1].rows
    shown = study.unhealthy[study.gallery]
    pixels = study.cohort.pixels(study.rows[shown])[:, study.calibrated.calibration.settings.channels[0]]
    headings = ["input", "truth", *(f"t = {level}" for level in study.gallery_levels), "t_e"]
    block = CAPTION + len(KINDS) * (TILE + GAP) + GAP
    sheet = Image.new("RGB", (SIDE + len(headings) * (TILE + GAP), CAPTION + GAP + len(rows) * block), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for column, heading in enumerate(headings):
        pen.text((SIDE + column * (TILE + GAP), 4), heading, FOREGROUND, font())
    for number, (scan, index, size, end) in enumerate(rows):
        top = CAPTION + GAP + number * block
        caption = f"{scan}, slice {int(index) + 1}: lesion of {size} pixels, t_e = {end}"
        pen.text((SIDE, top), caption, MUTED, font())
        tiles = ablations.measurements.tiles[number]
        _draw_block(sheet, pixels[number], study.lesions[shown[number]], tiles, top + CAPTION)
        if study.cohort.oriented(study.rows[shown[number]]):
            _mark_sides(sheet, len(headings), top + CAPTION)
    return sheet


def _mark_sides(sheet: Image.Image, columns: int, top: int) -> None:
    for row, column in np.ndindex(len(KINDS), columns):
        corner = SIDE + column * (TILE + GAP), top + row * (TILE + GAP)
        if (row, column) != (1, 1):  # no tile
            sheet.paste(mark_sides(sheet.crop((*corner, corner[0] + TILE, corner[1] + TILE))), corner)


def _draw_block(sheet: Image.Image, pixels: np.ndarray, lesion: np.ndarray, tiles: np.ndarray, top: int) -> None:
    """tiles [2, levels + 1, H, W]."""
    for row, kind in enumerate(KINDS):
        y = top + row * (TILE + GAP)
        ImageDraw.Draw(sheet).text((6, y + TILE // 2 - 6), kind, MUTED, font())
        for column, image in enumerate(tiles[row], start=2):
            tile = heat_tile(image, float(np.percentile(image, WHITE_PERCENTILE)), TILE)
            sheet.paste(tile, (SIDE + column * (TILE + GAP), y))
    grey = grey_tile(pixels, TILE)
    sheet.paste(grey, (SIDE, top))
    sheet.paste(draw_outline(grey, lesion), (SIDE, top + TILE + GAP))
    sheet.paste(grey_tile(np.where(lesion, 1.0, -1.0), TILE), (SIDE + TILE + GAP, top))


def to_json(ablations: Ablations) -> str:
    tables = {
        table.name: {
            "summary": table.summary,
            **table.numbers,
            "rows": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        }
        for table in ablations.tables
    }
    return json.dumps(without_nan({"settings": ablations.settings, "ablations": tables}), indent=2, allow_nan=False)
