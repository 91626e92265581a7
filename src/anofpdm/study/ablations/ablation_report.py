"""Report of the ablations: a figure and a table each, all numbers as JSON, and a page."""

import html
import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

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
    for one in ablations.tables:
        picture = FIGURES[one.name](one) if one.name in FIGURES else draw_gallery(ablations)
        write_atomically(out / f"{one.name}.png", encode_png(picture))
        rows = (["" if value is None else value for value in without_nan(row)] for row in one.rows)
        write_atomically(out / f"{one.name}.csv", encode_csv(one.columns, rows))
    write_atomically(out / NUMBERS, to_json(ablations).encode())
    write_atomically(out / PAGE, render_page(ablations).encode())


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
        one.name: {
            "summary": one.summary,
            **one.numbers,
            "rows": [dict(zip(one.columns, row, strict=True)) for row in one.rows],
        }
        for one in ablations.tables
    }
    return json.dumps(without_nan({"settings": ablations.settings, "ablations": tables}), indent=2, allow_nan=False)


def render_page(ablations: Ablations) -> str:
    settings = ablations.settings
    parts = [
        f"<section><h2>{one.name.replace('_', ' ')}</h2><p>{html.escape(one.summary)}</p>"
        f'<a href="{one.name}.png"><img src="{one.name}.png" alt="{html.escape(one.summary)}"></a>'
        f'<p><a href="{one.name}.csv">{one.name}.csv</a></p></section>'
        for one in ablations.tables
    ]
    about = (
        f"{settings['healthy_slices']} healthy and {settings['unhealthy_slices']} unhealthy slices of "
        f"{settings['patients']} patients, {len(settings['levels'])} noise levels, scored: "
        f"{', '.join(settings['scored'])}. Calibrated with image-level labels of these slices; lesion masks are used "
        f"for scores only. Model {settings['model_sha256'][:12]}, anofpdm {settings['anofpdm']}."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Ablations</title><style>'
        "body{background:#101012;color:#ebebeb;font:15px/1.5 system-ui,sans-serif;max-width:1280px;margin:2em auto;"
        "padding:0 1em}img{max-width:100%}a{color:#5c94ec}h2{margin:1.6em 0 0;font-size:1.15em}p{max-width:48em}"
        f"</style></head><body><h1>Ablations</h1><p>{html.escape(about)}</p>{''.join(parts)}"
        f'<p>All numbers and settings: <a href="{NUMBERS}">{NUMBERS}</a></p></body></html>\n'
    )
