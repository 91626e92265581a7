"""A picture like the paper's, and a page that puts an evaluation together."""

import html
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from anofpdm import __version__
from anofpdm.evaluation.comparison.protocol import Evaluation, results_of
from anofpdm.evaluation.comparison.tables import as_json, latex, markdown, patients_csv, slices_csv
from anofpdm.util.drawing import BACKGROUND, FOREGROUND, MUTED, draw_outline, encode_png, font, grey_tile, heat_tile
from anofpdm.util.files import write_atomically

TILE, GAP, CAPTION, SIDE = 112, 4, 18, 60
JSON, CSV, PATIENTS, MARKDOWN, LATEX, PICTURE, PAGE = (
    "results.json",
    "slices.csv",
    "patients.csv",
    "table.md",
    "table.tex",
    "examples.png",
    "index.html",
)
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}
td,th{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:left;white-space:nowrap}
img{max-width:100%}pre{overflow-x:auto;font-size:.8rem}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#151517}a{color:#8ab4f8}}
"""


def write_up(evaluation: Evaluation) -> None:
    """Everything that is read by people or programs, from what the methods left in the folder."""
    out, results = evaluation.out, results_of(evaluation)
    table = markdown(results, evaluation)
    said = {
        "settings": evaluation.settings(),
        "seeds": list(evaluation.options.seeds),
        "models": dict(evaluation.hashes),
        "device": str(evaluation.model.device),
        "calibrated": {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("calibration-*.json"))},
        "tuned_with_masks": {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("tuned-*.json"))},
        "failed": evaluation.failed,
        "methods": as_json(results),
    }
    write_atomically(out / JSON, json.dumps(said, indent=2).encode())
    write_atomically(out / CSV, slices_csv(results, evaluation))
    write_atomically(out / PATIENTS, patients_csv(results, evaluation))
    write_atomically(out / MARKDOWN, table.encode())
    write_atomically(out / LATEX, latex(results).encode())
    if len(evaluation.example_positions()):
        write_atomically(out / PICTURE, examples(evaluation, list(results)))
    write_atomically(out / PAGE, _page(evaluation, table).encode())


def examples(evaluation: Evaluation, names: list[str]) -> bytes:
    """As in the paper: a slice a row, from small lesions to large, a method a column; its map above, its mask below."""
    positions = evaluation.example_positions()
    rows = evaluation.measured_rows()[positions]
    channel = evaluation.model.channels(evaluation.options.calibration.score)[0]
    pixels, truth = evaluation.cohort.pixels(rows)[:, channel], evaluation.known.truth[positions]
    columns = {
        "input, truth": [_pair(grey_tile(one, TILE), one, mask) for one, mask in zip(pixels, truth, strict=True)]
    }
    for name in names:
        shown = _shown(evaluation, name)
        if shown is not None:
            highest = float(np.percentile(shown["maps"], 99.5))
            several = zip(shown["maps"], pixels, shown["masks"], strict=True)
            columns[name] = [_pair(heat_tile(heat, highest, TILE), one, mask) for heat, one, mask in several]
    step = 2 * TILE + 3 * GAP
    sheet = Image.new("RGB", (SIDE + len(columns) * (TILE + GAP), CAPTION + len(rows) * step), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for number, row in enumerate(rows):
        pen.text((GAP, CAPTION + number * step + TILE - 6), f"slice {evaluation.cohort.indices[row]}", MUTED, font())
    for column, (name, tiles) in enumerate(columns.items()):
        left = SIDE + column * (TILE + GAP)
        pen.text((left, 3), name, FOREGROUND, font())
        for number, tile in enumerate(tiles):
            sheet.paste(tile, (left, CAPTION + number * step))
    return encode_png(sheet)


def _pair(above: Image.Image, pixels: np.ndarray, mask: np.ndarray) -> Image.Image:
    """One tile, and below it the slice with the mask's outline."""
    sheet = Image.new("RGB", (TILE, 2 * TILE + GAP), BACKGROUND)
    sheet.paste(above, (0, 0))
    sheet.paste(draw_outline(grey_tile(pixels, TILE), mask), (0, TILE + GAP))
    return sheet


def _shown(evaluation: Evaluation, name: str) -> dict[str, np.ndarray] | None:
    found = evaluation.saved(name, "unhealthy", evaluation.options.seeds[0])
    return found[1] if found is not None and "maps" in found[1] else None


def _page(evaluation: Evaluation, table: str) -> str:
    settings: dict[str, Any] = {**evaluation.settings(), "options": asdict(evaluation.options)}
    known = evaluation.known
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Evaluation</title><style>{STYLE}</style>
<h1>Evaluation</h1>
<p>{len(known.truth)} slices, {int(known.unhealthy.sum())} of them with a lesion, of {len(np.unique(known.patients))}
patients ({html.escape(evaluation.options.split)} split of {html.escape(evaluation.cohort.path.name)}).
Files: {" ".join(f'<a href="{name}">{name}</a>' for name in (JSON, CSV, PATIENTS, MARKDOWN, LATEX))}</p>
{html_tables(table)}
{_examples_part(evaluation)}
<details><summary>Settings</summary><pre>{html.escape(json.dumps(settings, indent=2, default=str))}</pre></details>
<p>anofpdm {__version__}</p></html>
"""


def _examples_part(evaluation: Evaluation) -> str:
    if not len(evaluation.example_positions()):
        return "<p>No slice of this set has a lesion, so there is nothing to show.</p>"
    return (
        "<h2>Examples</h2><p>From small lesions to large. Under each method's map, its mask before the detector.</p>"
        f'<img src="{PICTURE}" alt="input, truth, and map and mask of each method for a few slices">'
    )


def html_tables(text: str) -> str:
    """The little Markdown that our tables are written in, as HTML."""
    parts, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([html.escape(cell.strip()) for cell in line.strip("|").split("|")])
            continue
        if rows:
            head, body = rows[0], [row for row in rows[1:] if set("".join(row)) != {"-"}]
            cells = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body]
            parts.append("<table><tr>" + "".join(f"<th>{c}</th>" for c in head) + "</tr>" + "".join(cells) + "</table>")
            rows = []
        if line.startswith("### "):
            parts.append(f"<h2>{html.escape(line[4:])}</h2>")
        elif line:
            parts.append(f"<p>{html.escape(line)}</p>")
    return "\n".join(parts)
