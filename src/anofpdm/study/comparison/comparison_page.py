"""Report of an evaluation: tables, a figure of example slices, and a page."""

import html
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from anofpdm import __version__
from anofpdm.scoring.html_page import STYLE, html_tables
from anofpdm.study.comparison.comparison_tables import as_json, latex, markdown, patients_csv, slices_csv
from anofpdm.study.comparison.job import EvaluationJob
from anofpdm.study.comparison.names import Setup
from anofpdm.study.comparison.protocol import Failures
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
from anofpdm.util.files import write_atomically

TILE, GAP, CAPTION, SIDE = 112, 4, 18, 60
MARKDOWN, PICTURE, PAGE = "table.md", "examples.png", "index.html"
EXAMPLES = (
    "<h2>Examples</h2><p>From small lesions to large. Below each method's map, its mask before the detector.</p>"
    f'<img src="{PICTURE}" alt="input, ground truth, and map and mask of each method for example slices">'
)


def write_report(job: EvaluationJob, failures: Failures) -> None:
    """Tables, figures and the page, from the results in the folder."""
    out, results = job.out, job.results()
    table = markdown(results, job, failures)

    def stored(pattern: str) -> dict[str, Any]:
        return {path.stem: json.loads(path.read_text()) for path in sorted(out.glob(pattern))}

    payload = {
        "settings": job.settings(),
        "seeds": list(job.config.seeds),
        "models": dict(job.models.hashes),
        "device": str(job.model.device),
        "calibrated": stored("calibration-*.json"),
        "tuned_with_masks": stored("tuned-*.json"),
        "failed": failures,
        "methods": as_json(results),
    }
    files = {
        "results.json": json.dumps(payload, indent=2).encode(),
        "slices.csv": slices_csv(results, job),
        "patients.csv": patients_csv(results, job),
        MARKDOWN: table.encode(),
        "table.tex": latex(results).encode(),
    }
    for name, data in files.items():
        write_atomically(out / name, data)
    examples_part = "<p>No examples: no slice of this set has a lesion.</p>"
    if len(job.example_positions):
        write_atomically(out / PICTURE, examples(job, list(results)))
        examples_part = EXAMPLES
    write_atomically(out / PAGE, _page(job, html_tables(table) + "\n" + examples_part, list(files)).encode())


def examples(job: EvaluationJob, names: list[str]) -> bytes:
    """As in the paper: a row per slice, from small lesions to large, a column per method; its map above its mask."""
    positions = job.example_positions
    rows = job.evaluation_set.rows[positions]
    pixels, truth = job.cohort.pixels(rows)[:, job.channels[0]], job.evaluation_set.truth.masks[positions]
    columns = {"input, truth": ([grey_tile(one, TILE) for one in pixels], truth)}
    for name in names:
        stored = job.load(name, Setup.UNHEALTHY, job.config.seeds[0])
        if stored is not None and "maps" in stored[1]:
            maps, masks = stored[1]["maps"], stored[1]["masks"]
            highest = float(np.percentile(maps, 99.5))
            columns[name] = [heat_tile(heat, highest, TILE) for heat in maps], masks
    step = 2 * TILE + 3 * GAP
    sheet = Image.new("RGB", (SIDE + len(columns) * (TILE + GAP), CAPTION + len(rows) * step), BACKGROUND)
    pen, tops = ImageDraw.Draw(sheet), [CAPTION + number * step for number in range(len(rows))]
    for row, top in zip(rows, tops, strict=True):
        pen.text((GAP, top + TILE - 6), f"slice {job.cohort.indices[row] + 1}", MUTED, font())
    for column, (name, (tiles, masks)) in enumerate(columns.items()):
        left = SIDE + column * (TILE + GAP)
        pen.text((left, 3), name, FOREGROUND, font())
        for tile, one, mask, top, row in zip(tiles, pixels, masks, tops, rows, strict=True):
            for number, image in enumerate((tile, draw_outline(grey_tile(one, TILE), mask))):
                marked = mark_sides(image) if job.cohort.oriented(row) else image
                sheet.paste(marked, (left, top + number * (TILE + GAP)))
    return encode_png(sheet)


def _page(job: EvaluationJob, body: str, files: list[str]) -> str:
    settings: dict[str, Any] = {**job.settings(), "options": asdict(job.config)}
    truth = job.evaluation_set.truth
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Evaluation</title><style>{STYLE}</style>
<h1>Evaluation</h1>
<p>{len(truth.masks)} slices, {int(truth.unhealthy.sum())} with a lesion, from {len(np.unique(truth.patients))}
patients ({html.escape(job.config.split)} split of {html.escape(job.cohort.path.name)}).
Files: {" ".join(f'<a href="{name}">{name}</a>' for name in files)}</p>
{body}
<details><summary>Settings</summary><pre>{html.escape(json.dumps(settings, indent=2, default=str))}</pre></details>
<p>anofpdm {__version__}</p></html>
"""
