"""Report of an evaluation: tables, a figure of example slices, and a page."""

import html
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from anofpdm import __version__
from anofpdm.evaluation.comparison.job import EvaluationJob
from anofpdm.evaluation.comparison.names import Setup
from anofpdm.evaluation.comparison.protocol import Failures
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


def write_report(job: EvaluationJob, failures: Failures) -> None:
    """Tables, figures and the page, from the results in the folder."""
    out, results = job.out, job.results()
    table = markdown(results, job, failures)
    payload = {
        "settings": job.settings(),
        "seeds": list(job.config.seeds),
        "models": dict(job.models.hashes),
        "device": str(job.model.device),
        "calibrated": {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("calibration-*.json"))},
        "tuned_with_masks": {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("tuned-*.json"))},
        "failed": failures,
        "methods": as_json(results),
    }
    write_atomically(out / JSON, json.dumps(payload, indent=2).encode())
    write_atomically(out / CSV, slices_csv(results, job))
    write_atomically(out / PATIENTS, patients_csv(results, job))
    write_atomically(out / MARKDOWN, table.encode())
    write_atomically(out / LATEX, latex(results).encode())
    if len(_example_positions(job)):
        write_atomically(out / PICTURE, examples(job, list(results)))
    write_atomically(out / PAGE, _page(job, table).encode())


def examples(job: EvaluationJob, names: list[str]) -> bytes:
    """As in the paper: a row per slice, from small lesions to large, a column per method; its map above its mask."""
    positions = _example_positions(job)
    rows = job.evaluation_set.rows[positions]
    channel = job.model.channels(job.config.calibration.score)[0]
    pixels, truth = job.cohort.pixels(rows)[:, channel], job.evaluation_set.truth.masks[positions]
    columns = {
        "input, truth": [_pair(grey_tile(one, TILE), one, mask) for one, mask in zip(pixels, truth, strict=True)]
    }
    for name in names:
        stored = job.load(name, Setup.UNHEALTHY, job.config.seeds[0])
        if stored is not None and "maps" in stored[1]:
            maps, masks = stored[1]["maps"], stored[1]["masks"]
            highest = float(np.percentile(maps, 99.5))
            columns[name] = [
                _pair(heat_tile(heat, highest, TILE), one, mask)
                for heat, one, mask in zip(maps, pixels, masks, strict=True)
            ]
    return _sheet(columns, [f"slice {job.cohort.indices[row]}" for row in rows])


def _example_positions(job: EvaluationJob) -> np.ndarray:
    return job.evaluation_set.example_positions(job.config.examples)


def _sheet(columns: dict[str, list[Image.Image]], row_names: list[str]) -> bytes:
    step = 2 * TILE + 3 * GAP
    sheet = Image.new("RGB", (SIDE + len(columns) * (TILE + GAP), CAPTION + len(row_names) * step), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for number, name in enumerate(row_names):
        pen.text((GAP, CAPTION + number * step + TILE - 6), name, MUTED, font())
    for column, (name, tiles) in enumerate(columns.items()):
        left = SIDE + column * (TILE + GAP)
        pen.text((left, 3), name, FOREGROUND, font())
        for number, tile in enumerate(tiles):
            sheet.paste(tile, (left, CAPTION + number * step))
    return encode_png(sheet)


def _pair(above: Image.Image, pixels: np.ndarray, mask: np.ndarray) -> Image.Image:
    """A tile above the slice with the mask's outline."""
    sheet = Image.new("RGB", (TILE, 2 * TILE + GAP), BACKGROUND)
    sheet.paste(above, (0, 0))
    sheet.paste(draw_outline(grey_tile(pixels, TILE), mask), (0, TILE + GAP))
    return sheet


def _page(job: EvaluationJob, table: str) -> str:
    settings: dict[str, Any] = {**job.settings(), "options": asdict(job.config)}
    truth = job.evaluation_set.truth
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Evaluation</title><style>{STYLE}</style>
<h1>Evaluation</h1>
<p>{len(truth.masks)} slices, {int(truth.unhealthy.sum())} with a lesion, from {len(np.unique(truth.patients))}
patients ({html.escape(job.config.split)} split of {html.escape(job.cohort.path.name)}).
Files: {" ".join(f'<a href="{name}">{name}</a>' for name in (JSON, CSV, PATIENTS, MARKDOWN, LATEX))}</p>
{html_tables(table)}
{_examples_part(job)}
<details><summary>Settings</summary><pre>{html.escape(json.dumps(settings, indent=2, default=str))}</pre></details>
<p>anofpdm {__version__}</p></html>
"""


def _examples_part(job: EvaluationJob) -> str:
    if not len(_example_positions(job)):
        return "<p>No examples: no slice of this set has a lesion.</p>"
    return (
        "<h2>Examples</h2><p>From small lesions to large. Below each method's map, its mask before the detector.</p>"
        f'<img src="{PICTURE}" alt="input, ground truth, and map and mask of each method for example slices">'
    )


def html_tables(text: str) -> str:
    """The Markdown of our tables as HTML."""
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
