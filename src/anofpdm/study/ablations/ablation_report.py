"""Report of the ablations: a figure and a table each, all numbers as JSON, and a page."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from anofpdm.report.render import render
from anofpdm.study.ablations.charts import FIGURES
from anofpdm.study.ablations.levels import KINDS
from anofpdm.study.ablations.run_ablations import Ablations
from anofpdm.util import drawing
from anofpdm.util.files import encode_csv, without_nan, write_atomically

PAGE, NUMBERS = "index.html", "ablations.json"
TILE = 112
WHITE_PERCENTILE = 99.5  # of a tile


def write_report(ablations: Ablations, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    pictures = {
        table.name: drawing.encode_png(FIGURES[table.name](table) if table.name in FIGURES else draw_gallery(ablations))
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
    """A block per slice: S_t above the gradient, the slice and the outline of its lesion on the left."""
    study, blocks = ablations.study, []
    shown = study.unhealthy[study.gallery]
    pixels = study.cohort.pixels(study.rows[shown])[:, study.calibration.settings.channels[0]]
    levels = [*(f"t = {level}" for level in study.gallery_levels), "t_e"]
    for number, (scan, index, size, end) in enumerate(ablations.tables[-1].rows):
        sides = "RL" if study.cohort.oriented(study.rows[shown[number]]) else ""
        grey, lesion = drawing.grey_tile(pixels[number], TILE), study.lesions[shown[number]]
        rows = [
            [drawing.captioned(drawing.annotate(grey, {}, sides), "input")],
            [drawing.captioned(drawing.annotate(grey, {drawing.OUTLINE: lesion}, sides), "truth")],
        ]
        for row, kind, maps in zip(rows, KINDS, ablations.measurements.tiles[number], strict=True):
            for values, level in zip(maps, levels, strict=True):
                heat = drawing.heat_tile(values, float(np.percentile(values, WHITE_PERCENTILE)), TILE)
                row.append(drawing.captioned(drawing.annotate(heat, {}, sides), f"{kind}, {level}"))
        caption = f"{scan}, slice {int(index) + 1}: lesion of {size} pixels, t_e = {end}"
        blocks.append([drawing.captioned(drawing.arrange(rows), caption, drawing.FOREGROUND)])
    return drawing.arrange(blocks)


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
