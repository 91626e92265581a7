"""Ablations as pictures, tables and a page that puts them together."""

import html
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.evaluation.ablations.levels import KINDS
from anofpdm.evaluation.ablations.run import Ablations, Gallery
from anofpdm.evaluation.ablations.tables import Ablation, Cell
from anofpdm.util.drawing import (
    BACKGROUND,
    BLUE,
    FOREGROUND,
    GRIDLINE,
    MUTED,
    ORANGE,
    Line,
    chart,
    draw_outline,
    encode_png,
    font,
    grey_tile,
    heat_tile,
    hstack_images,
)
from anofpdm.util.files import encode_csv, write_atomically

PAGE, NUMBERS, GALLERY = "index.html", "ablations.json", "gallery"
WIDE = (540, 280)
GREEN, VIOLET = (110, 196, 130), (186, 130, 230)
TILE, GAP, CAPTION, SIDE = 112, 4, 18, 66
WHITE_SHARE = 99.5  # percentile of a tile that is drawn white


def save(ablations: Ablations, out: Path) -> None:
    """A PNG and a CSV each, all numbers as JSON, and the page."""
    out.mkdir(parents=True, exist_ok=True)
    for one in ablations.tables:
        picture = gallery(ablations.gallery) if one.name == GALLERY else FIGURES[one.name](one)
        write_atomically(out / f"{one.name}.png", encode_png(picture))
        write_atomically(out / f"{one.name}.csv", encode_csv(one.columns, [map(_cell, row) for row in one.rows]))
    write_atomically(out / NUMBERS, numbers(ablations).encode())
    write_atomically(out / PAGE, page(ablations).encode())


# ---- charts ----------------------------------------------------------------------------------------------------------


def _mse_curves(table: Ablation) -> Image.Image:
    levels = table.column("level")
    names = [name for name in table.columns if name != "level"]
    highest = max(max(table.column(name)) for name in names)

    def panel(group: str) -> Image.Image:
        lines = []
        for kind, colour, name in (("guided", ORANGE, "MSE^h, guided"), ("unguided", BLUE, "MSE^0, unguided")):
            thin = [table.column(f"{group}_{kind}_{quartile}") for quartile in ("q25", "q75")]
            lines += [Line(levels, values, _dimmed(colour), width=1) for values in thin]
            lines.append(Line(levels, table.column(f"{group}_{kind}_mean"), colour, name))
        title = f"{group.capitalize()} slices, w* = {table.numbers['strength']:g} (thin: quartiles)"
        return chart(lines, title, xlabel="noise level t", ylim=(0.0, highest))

    return hstack_images([panel("healthy"), panel("unhealthy")])


def _sam(table: Ablation) -> Image.Image:
    levels, end = table.column("level"), [(table.numbers["median_end_step"], "median t_e")]
    magnitudes = [
        Line(levels, table.column("inside"), ORANGE, "in the lesion"),
        Line(levels, table.column("outside"), BLUE, "around it"),
    ]
    panels = [
        ("Mean magnitude of S_t", magnitudes),
        ("Ratio of the two", [Line(levels, table.column("ratio"), GREEN)]),
        ("Divergence M_t", [Line(levels, table.column("divergence"), VIOLET)]),
    ]
    return hstack_images([chart(lines, title, xlabel="noise level t", vlines=end) for title, lines in panels])


def _lesion_size(table: Ablation) -> Image.Image:
    dots = Line(table.column("pixels"), table.column("divergence"), ORANGE, dots=True, joined=False)
    title = f"Divergence at the end step by lesion size, Pearson r = {table.numbers['pearson_r']:.3f}"
    return chart([dots], title, size=WIDE, xlabel="lesion size in pixels")


def _strength(table: Ablation) -> Image.Image:
    marks = [(table.numbers["best_strength"], "w_best"), (table.numbers["strength"], "w*")]
    panels = [
        ("Image-level accuracy, cosine's best cut", "accuracy", BLUE),
        ("Unhealthy DICE", "unhealthy_dice", ORANGE),
    ]
    return hstack_images(
        [
            chart(
                [Line(table.column("strength"), table.column(name), colour, dots=True)],
                title,
                xlabel="guidance strength w",
                vlines=marks,
                ylim=_tenths(table.column(name)),
            )
            for title, name, colour in panels
        ]
    )


def _end_step(table: Ablation) -> Image.Image:
    line = Line(table.column("factor"), table.column("unhealthy_dice"), ORANGE, dots=True)
    return chart(
        [line],
        "Unhealthy DICE by end step",
        size=WIDE,
        xlabel="multiple of t_e",
        vlines=[(1, "t_e")],
        ylim=_tenths(line.y),
    )


def _threshold(table: Ablation) -> Image.Image:
    fixed = [row for row in table.rows if row[0] == "fixed"]
    quantiles = [float(row[1]) for row in fixed]
    lines = [Line(quantiles, [float(row[2]) for row in fixed], MUTED, "fixed quantile", dots=True)]
    names = {"dynamic": "dynamic (the paper's)", "healthy": "from healthy slices", "both": "both"}
    scores = {str(row[0]): float(row[2]) for row in table.rows if row[0] != "fixed"}
    for colour, (name, word) in zip((ORANGE, BLUE, GREEN), names.items(), strict=True):
        lines.append(Line([quantiles[0], quantiles[-1]], [scores[name]] * 2, colour, word))
    return chart(
        lines,
        "Unhealthy DICE by threshold",
        size=WIDE,
        xlabel="quantile of the map, where it is fixed",
        ylim=_tenths(table.column("unhealthy_dice")),
    )


def _levels(table: Ablation) -> Image.Image:
    lines = [
        Line(table.column("levels"), table.column("unhealthy_dice"), ORANGE, "unhealthy DICE", dots=True),
        Line(table.column("levels"), table.column("auprc"), BLUE, "AUPRC", dots=True),
    ]
    both = [*table.column("unhealthy_dice"), *table.column("auprc")]
    return chart(lines, "Quality by number of noise levels", size=WIDE, xlabel="levels K", ylim=_tenths(both))


def _variants(table: Ablation) -> Image.Image:
    return _panels_of_bars(table, {"Unhealthy DICE": "unhealthy_dice", "AUPRC": "auprc"})


def _detector(table: Ablation) -> Image.Image:
    panels = {"Accuracy, held-out patients": "accuracy", "AUC, held-out patients": "auc", "Mixed DICE": "mixed_dice"}
    return _panels_of_bars(table, panels)


FIGURES: dict[str, Callable[[Ablation], Image.Image]] = {
    "mse_curves": _mse_curves,
    "sam": _sam,
    "lesion_size": _lesion_size,
    "strength": _strength,
    "end_step": _end_step,
    "threshold": _threshold,
    "levels": _levels,
    "variants": _variants,
    "detector": _detector,
}


def _panels_of_bars(table: Ablation, panels: dict[str, str]) -> Image.Image:
    """A panel each, of the column that is named; a bar each, named by the first column."""
    names = [str(row[0]) for row in table.rows]
    return hstack_images(
        [_bars(dict(zip(names, table.column(column), strict=True)), title) for title, column in panels.items()]
    )


def _bars(values: dict[str, float], title: str) -> Image.Image:
    """From 0 to 1, lying; what is not a number is left out."""
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    left, width, height = 20 + max((int(font().getlength(name)) for name in values), default=0), 170, 22
    sheet = Image.new("RGB", (left + width + 50, 36 + height * len(values)), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((8, 6), title, FOREGROUND, font(12))
    for number, (name, value) in enumerate(known.items()):
        top = 32 + number * height
        pen.text((8, top), name, MUTED, font())
        pen.rectangle((left, top, left + width, top + height - 8), GRIDLINE)
        pen.rectangle((left, top, left + width * min(max(value, 0.0), 1.0), top + height - 8), BLUE)
        pen.text((left + width + 6, top), f"{value:.3f}", FOREGROUND, font())
    return sheet


def _tenths(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The axis of a share: from a whole tenth to a whole tenth."""
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = math.floor(10 * min(known) + 1e-9), math.ceil(10 * max(known) - 1e-9)
    low = min(low, high - 1) if high else 0
    return low / 10, max(high, low + 1) / 10


def _dimmed(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (int(0.55 * value) for value in colour)
    return red, green, blue


# ---- the gallery -----------------------------------------------------------------------------------------------------


def gallery(shown: Gallery) -> Image.Image:
    """A block a slice: S_t above, the gradient below; input and truth on the left."""
    headings = ["input", "truth", *(f"t = {level}" for level in shown.levels), "t_e"]
    block = CAPTION + len(KINDS) * (TILE + GAP) + GAP
    size = SIDE + len(headings) * (TILE + GAP), CAPTION + GAP + len(shown.pixels) * block
    sheet = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for column, word in enumerate(headings):
        pen.text((SIDE + column * (TILE + GAP), 4), word, FOREGROUND, font())
    for number, caption in enumerate(shown.captions):
        top = CAPTION + GAP + number * block
        pen.text((SIDE, top), caption, MUTED, font())
        lesion, tiles = shown.lesions[number], shown.tiles[number]  # [2, levels + 1, H, W]
        for row, kind in enumerate(KINDS):
            level = top + CAPTION + row * (TILE + GAP)
            pen.text((6, level + TILE // 2 - 6), kind, MUTED, font())
            heat = [heat_tile(one, float(np.percentile(one, WHITE_SHARE)), TILE) for one in tiles[row]]
            for column, tile in enumerate(heat, start=2):
                sheet.paste(tile, (SIDE + column * (TILE + GAP), level))
        at = top + CAPTION
        grey = grey_tile(shown.pixels[number], TILE)
        sheet.paste(grey, (SIDE, at))
        sheet.paste(draw_outline(grey, lesion), (SIDE, at + TILE + GAP))
        sheet.paste(grey_tile(np.where(lesion, 1.0, -1.0), TILE), (SIDE + TILE + GAP, at))
    return sheet


# ---- numbers and page ------------------------------------------------------------------------------------------------


def numbers(ablations: Ablations) -> str:
    tables = {
        one.name: {
            "says": one.says,
            **one.numbers,
            "rows": [dict(zip(one.columns, row, strict=True)) for row in one.rows],
        }
        for one in ablations.tables
    }
    return json.dumps(_plain({"settings": ablations.settings, "ablations": tables}), indent=2, allow_nan=False)


def page(ablations: Ablations) -> str:
    said = ablations.settings
    parts = [
        f"<section><h2>{one.name.replace('_', ' ')}</h2><p>{html.escape(one.says)}</p>"
        f'<a href="{one.name}.png"><img src="{one.name}.png" alt="{html.escape(one.says)}"></a>'
        f'<p><a href="{one.name}.csv">{one.name}.csv</a></p></section>'
        for one in ablations.tables
    ]
    about = (
        f"{said['healthy_slices']} healthy and {said['unhealthy_slices']} unhealthy slices of {said['patients']} "
        f"patients, {len(said['levels'])} noise levels, scored: {', '.join(said['scored'])}. FittedCalibration from "
        f"image-level labels of these slices; lesion masks only measured. Model {said['model_sha256'][:12]}, "
        f"anofpdm {said['anofpdm']}."
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Ablations</title><style>'
        "body{background:#101012;color:#ebebeb;font:15px/1.5 system-ui,sans-serif;max-width:1280px;margin:2em auto;"
        "padding:0 1em}img{max-width:100%}a{color:#5c94ec}h2{margin:1.6em 0 0;font-size:1.15em}p{max-width:48em}"
        f"</style></head><body><h1>Ablations</h1><p>{html.escape(about)}</p>{''.join(parts)}"
        f'<p>All numbers and settings: <a href="{NUMBERS}">{NUMBERS}</a></p></body></html>\n'
    )


def _cell(value: Cell) -> Cell:
    """What is undefined is an empty cell."""
    return "" if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """As JSON has it: without numbers that are none."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
