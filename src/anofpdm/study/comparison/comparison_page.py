"""Report of an evaluation: tables, a figure of example slices, and a page."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from anofpdm import __version__
from anofpdm.report.blocks import to_markdown
from anofpdm.report.render import render
from anofpdm.study.comparison.comparison_tables import as_json, latex, patients_csv, slices_csv, text_blocks
from anofpdm.study.comparison.job import EvaluationJob, Results
from anofpdm.study.comparison.names import Setup
from anofpdm.study.comparison.protocol import Failures
from anofpdm.util import drawing
from anofpdm.util.files import write_atomically

TILE = 112
MARKDOWN, PICTURE, PAGE = "table.md", "examples.png", "index.html"


def write_report(job: EvaluationJob, failures: Failures) -> None:
    """Tables, figures and the page, from the results in the folder."""
    out, results, truth = job.out, job.results(), job.evaluation_set
    blocks = text_blocks(results, job, failures)
    files = {
        "results.json": _everything(job, results, failures),
        "slices.csv": slices_csv(results, job),
        "patients.csv": patients_csv(results, job),
        MARKDOWN: to_markdown(blocks).encode(),
        "table.tex": latex(results).encode(),
    }
    picture = draw_examples(job, list(results)) if len(job.example_positions) else None
    page = render(
        "evaluation.html",
        slices=len(truth.masks),
        unhealthy=int(truth.unhealthy.sum()),
        patients=len(np.unique(truth.patients)),
        split=job.config.split,
        cohort=job.cohort.path.name,
        files=list(files),
        blocks=blocks,
        examples=picture,
        settings=json.dumps({**job.settings(), "options": asdict(job.config)}, indent=2, default=str),
        version=__version__,
    )
    files |= {PICTURE: picture} if picture else {}
    for name, data in {**files, PAGE: page.encode()}.items():
        write_atomically(out / name, data)


def _everything(job: EvaluationJob, results: Results, failures: Failures) -> bytes:
    def stored(pattern: str) -> dict[str, Any]:
        return {path.stem: json.loads(path.read_text()) for path in sorted(job.out.glob(pattern))}

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
    return json.dumps(payload, indent=2).encode()


def draw_examples(job: EvaluationJob, names: list[str]) -> bytes:
    """As in the paper: a row per slice, from small lesions to large, a column per method; its map above its mask."""
    positions = job.example_positions
    rows = job.evaluation_set.rows[positions]
    pixels, truth = job.cohort.pixels(rows)[:, job.channels[0]], job.evaluation_set.masks[positions]
    slices = [drawing.grey_tile(slice_pixels, TILE) for slice_pixels in pixels]
    columns = {"input, truth": (slices, truth)}
    for name in names:
        stored = job.load(name, Setup.UNHEALTHY, job.config.seeds[0])
        if stored is not None and "maps" in stored[1]:
            maps, masks = stored[1]["maps"], stored[1]["masks"]
            highest = float(np.percentile(maps, 99.5))
            columns[name] = [drawing.heat_tile(heat, highest, TILE) for heat in maps], masks
    sheet = []
    for number, row in enumerate(rows):
        sides = "RL" if job.cohort.oriented(row) else ""
        blocks = []
        for name, (tiles, masks) in columns.items():
            upper = drawing.annotate(tiles[number], {}, sides)
            lower = drawing.annotate(slices[number], {drawing.OUTLINE: masks[number]}, sides)
            blocks.append(drawing.captioned(drawing.arrange([[upper], [lower]]), name))
        caption = f"slice {job.cohort.indices[row] + 1}"
        sheet.append([drawing.captioned(drawing.arrange([blocks]), caption, drawing.FOREGROUND)])
    return drawing.encode_png(drawing.arrange(sheet))
