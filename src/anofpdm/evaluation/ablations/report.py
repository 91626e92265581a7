"""Report of the ablations: a figure and a table each, all numbers as JSON, and a page."""

import html
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.evaluation.ablations.charts import FIGURES
from anofpdm.evaluation.ablations.gallery import Gallery
from anofpdm.evaluation.ablations.levels import KINDS
from anofpdm.evaluation.ablations.run import Ablations
from anofpdm.evaluation.ablations.tables import Cell
from anofpdm.util.drawing import BACKGROUND, FOREGROUND, MUTED, draw_outline, encode_png, font, grey_tile, heat_tile
from anofpdm.util.files import encode_csv, write_atomically

PAGE, NUMBERS, GALLERY = "index.html", "ablations.json", "gallery"
TILE, GAP, CAPTION, SIDE = 112, 4, 18, 66
WHITE_PERCENTILE = 99.5  # of a tile


def write_report(ablations: Ablations, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for one in ablations.tables:
        picture = draw_gallery(ablations.gallery) if one.name == GALLERY else FIGURES[one.name](one)
        write_atomically(out / f"{one.name}.png", encode_png(picture))
        write_atomically(out / f"{one.name}.csv", encode_csv(one.columns, [map(_cell, row) for row in one.rows]))
    write_atomically(out / NUMBERS, to_json(ablations).encode())
    write_atomically(out / PAGE, render_page(ablations).encode())


def draw_gallery(gallery: Gallery) -> Image.Image:
    """A block per slice: S_t above the gradient, input and ground truth on the left."""
    headings = ["input", "truth", *(f"t = {level}" for level in gallery.levels), "t_e"]
    block = CAPTION + len(KINDS) * (TILE + GAP) + GAP
    size = SIDE + len(headings) * (TILE + GAP), CAPTION + GAP + len(gallery.pixels) * block
    sheet = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for column, heading in enumerate(headings):
        pen.text((SIDE + column * (TILE + GAP), 4), heading, FOREGROUND, font())
    for number in range(len(gallery.captions)):
        _draw_block(sheet, gallery, number, CAPTION + GAP + number * block)
    return sheet


def _draw_block(sheet: Image.Image, gallery: Gallery, number: int, top: int) -> None:
    pen = ImageDraw.Draw(sheet)
    pen.text((SIDE, top), gallery.captions[number], MUTED, font())
    top += CAPTION
    for row, kind in enumerate(KINDS):
        y = top + row * (TILE + GAP)
        pen.text((6, y + TILE // 2 - 6), kind, MUTED, font())
        for column, image in enumerate(gallery.tiles[number][row], start=2):  # tiles [2, levels + 1, H, W]
            tile = heat_tile(image, float(np.percentile(image, WHITE_PERCENTILE)), TILE)
            sheet.paste(tile, (SIDE + column * (TILE + GAP), y))
    lesion, grey = gallery.lesions[number], grey_tile(gallery.pixels[number], TILE)
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
    return json.dumps(_plain({"settings": ablations.settings, "ablations": tables}), indent=2, allow_nan=False)


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


def _cell(value: Cell) -> Cell:
    """Undefined numbers are empty cells."""
    return "" if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """For JSON: undefined numbers are null."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
