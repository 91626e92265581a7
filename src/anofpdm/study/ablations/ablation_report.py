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
    study, rows, step = ablations.study, ablations.tables[-1].rows, TILE + GAP
    shown = study.unhealthy[study.gallery]
    pixels = study.cohort.pixels(study.rows[shown])[:, study.calibration.settings.channels[0]]
    headings = ["input", "truth", *(f"t = {level}" for level in study.gallery_levels), "t_e"]
    block = CAPTION + len(KINDS) * step + GAP
    sheet = Image.new("RGB", (SIDE + len(headings) * step, CAPTION + GAP + len(rows) * block), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for column, heading in enumerate(headings):
        pen.text((SIDE + column * step, 4), heading, FOREGROUND, font())
    for number, (scan, index, size, end) in enumerate(rows):
        top = CAPTION + GAP + number * block
        caption = f"{scan}, slice {int(index) + 1}: lesion of {size} pixels, t_e = {end}"
        pen.text((SIDE, top), caption, MUTED, font())
        for row, kind in enumerate(KINDS):
            pen.text((6, top + CAPTION + row * step + TILE // 2 - 6), kind, MUTED, font())
        tiles = _tiles(pixels[number], study.lesions[shown[number]], ablations.measurements.tiles[number])
        oriented = study.cohort.oriented(study.rows[shown[number]])
        for (row, column), tile in tiles.items():
            place = SIDE + column * step, top + CAPTION + row * step
            sheet.paste(mark_sides(tile) if oriented else tile, place)
    return sheet


def _tiles(pixels: np.ndarray, lesion: np.ndarray, maps: np.ndarray) -> dict[tuple[int, int], Image.Image]:
    """By row and column; maps [2, levels + 1, H, W]."""
    grey = grey_tile(pixels, TILE)
    tiles = {(1, 0): draw_outline(grey, lesion), (0, 0): grey, (0, 1): grey_tile(np.where(lesion, 1.0, -1.0), TILE)}
    for row, column in np.ndindex(*maps.shape[:2]):
        image = maps[row, column]
        tiles[row, column + 2] = heat_tile(image, float(np.percentile(image, WHITE_PERCENTILE)), TILE)
    return tiles


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
