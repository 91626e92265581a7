"""Charts of the ablations, each drawn from its table alone."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.study.ablations.ablation_tables import Ablation
from anofpdm.util.drawing import (
    BACKGROUND,
    BLUE,
    FOREGROUND,
    GRIDLINE,
    MUTED,
    ORANGE,
    Line,
    arrange,
    chart,
    font,
)

WIDE = (540, 280)
GREEN, VIOLET = (110, 196, 130), (186, 130, 230)
DICE = {"unhealthy_dice": (ORANGE, "")}


def _mse_curves(table: Ablation) -> Image.Image:
    levels = table.column("level")
    highest = max(max(table.column(name)) for name in table.columns if name != "level")

    def panel(group: str) -> Image.Image:
        lines = []
        for kind, colour, name in (("guided", ORANGE, "MSE^h, guided"), ("unguided", BLUE, "MSE^0, unguided")):
            dimmed = int(0.55 * colour[0]), int(0.55 * colour[1]), int(0.55 * colour[2])
            thin = [table.column(f"{group}_{kind}_{quartile}") for quartile in ("q25", "q75")]
            lines += [Line(levels, values, dimmed, width=1) for values in thin]
            lines.append(Line(levels, table.column(f"{group}_{kind}_mean"), colour, name))
        title = f"{group.capitalize()} slices, w* = {table.numbers['strength']:g} (thin: quartiles)"
        return chart(lines, title, xlabel="noise level t", ylim=(0.0, highest))

    return arrange([[panel("healthy"), panel("unhealthy")]])


def _sam(table: Ablation) -> Image.Image:
    def line(column: str, colour: tuple[int, int, int], name: str = "") -> Line:
        return Line(table.column("level"), table.column(column), colour, name)

    panels = {
        "Mean magnitude of S_t": [line("inside", ORANGE, "inside the lesion"), line("outside", BLUE, "outside")],
        "Inside / outside": [line("ratio", GREEN)],
        "Divergence M_t": [line("divergence", VIOLET)],
    }
    end = [(table.numbers["median_end_step"], "median t_e")]
    return arrange([[chart(lines, title, xlabel="noise level t", vlines=end) for title, lines in panels.items()]])


def _lesion_size(table: Ablation) -> Image.Image:
    dots = Line(table.column("pixels"), table.column("divergence"), ORANGE, dots=True, joined=False)
    title = f"Divergence at the end step by lesion size, Pearson r = {table.numbers['pearson_r']:.3f}"
    return chart([dots], title, size=WIDE, xlabel="lesion size in pixels")


def _scores(
    table: Ablation,
    x: str,
    curves: dict[str, tuple[tuple[int, int, int], str]],
    title: str,
    xlabel: str,
    **options: Any,
) -> Image.Image:
    """Curves of columns, each with its colour and name."""
    lines = [Line(table.column(x), table.column(y), colour, name, dots=True) for y, (colour, name) in curves.items()]
    return chart(lines, title, xlabel=xlabel, ylim=_tenths(np.concatenate([line.y for line in lines])), **options)


def _strength(table: Ablation) -> Image.Image:
    marks = [(table.numbers["best_strength"], "w_best"), (table.numbers["strength"], "w*")]
    panels = {"Image-level accuracy, best cosine threshold": {"accuracy": (BLUE, "")}, "Unhealthy DICE": DICE}
    charts = [
        _scores(table, "strength", curves, title, "guidance strength w", vlines=marks)
        for title, curves in panels.items()
    ]
    return arrange([charts])


def _threshold(table: Ablation) -> Image.Image:
    fixed = [row for row in table.rows if row[0] == "fixed"]
    quantiles = [float(row[1]) for row in fixed]
    lines = [Line(quantiles, [float(row[2]) for row in fixed], MUTED, "fixed quantile", dots=True)]
    scores = {row[0]: float(row[2]) for row in table.rows}
    others = {"dynamic": "dynamic (the paper's)", "healthy": "from healthy slices", "both": "both"}
    for colour, (name, label) in zip((ORANGE, BLUE, GREEN), others.items(), strict=True):
        lines.append(Line([quantiles[0], quantiles[-1]], [scores[name]] * 2, colour, label))
    title, limits = "Unhealthy DICE by threshold", _tenths(table.column("unhealthy_dice"))
    return chart(lines, title, size=WIDE, xlabel="fixed quantile of the map", ylim=limits)


def _bars(table: Ablation, panels: dict[str, str]) -> Image.Image:
    """A panel per column, by title; a bar per row, named by the first column."""
    names = [str(row[0]) for row in table.rows]
    return arrange(
        [[_panel(dict(zip(names, table.column(column), strict=True)), title) for title, column in panels.items()]]
    )


def _panel(values: dict[str, float], title: str) -> Image.Image:
    """Horizontal bars from 0 to 1; undefined values are left out."""
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    left, width, height = 20 + max((int(font().getlength(name)) for name in values), default=0), 170, 22
    sheet = Image.new("RGB", (left + width + 50, 36 + height * len(values)), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((8, 6), title, FOREGROUND, font(12))
    for number, (name, value) in enumerate(finite.items()):
        top = 32 + number * height
        pen.text((8, top), name, MUTED, font())
        pen.rectangle((left, top, left + width, top + height - 8), GRIDLINE)
        pen.rectangle((left, top, left + width * min(max(value, 0.0), 1.0), top + height - 8), BLUE)
        pen.text((left + width + 6, top), f"{value:.3f}", FOREGROUND, font())
    return sheet


def _tenths(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Axis limits, rounded outwards to tenths."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = math.floor(10 * min(finite) + 1e-9), math.ceil(10 * max(finite) - 1e-9)
    low = min(low, high - 1) if high else 0
    return low / 10, max(high, low + 1) / 10


DETECTOR_PANELS = {
    "Accuracy, held-out patients": "accuracy",
    "AUC, held-out patients": "auc",
    "Mixed DICE": "mixed_dice",
}
QUALITY = {"unhealthy_dice": (ORANGE, "unhealthy DICE"), "auprc": (BLUE, "AUPRC")}
FIGURES: dict[str, Callable[[Ablation], Image.Image]] = {
    "mse_curves": _mse_curves,
    "sam": _sam,
    "lesion_size": _lesion_size,
    "strength": _strength,
    "end_step": functools.partial(
        _scores,
        x="factor",
        curves=DICE,
        title="Unhealthy DICE by end step",
        xlabel="multiple of t_e",
        size=WIDE,
        vlines=[(1, "t_e")],
    ),
    "threshold": _threshold,
    "levels": functools.partial(
        _scores, x="levels", curves=QUALITY, title="Quality by number of noise levels", xlabel="levels K", size=WIDE
    ),
    "variants": functools.partial(_bars, panels={"Unhealthy DICE": "unhealthy_dice", "AUPRC": "auprc"}),
    "detector": functools.partial(_bars, panels=DETECTOR_PANELS),
}
