"""Charts of the ablations, each drawn from its table alone."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.evaluation.ablations.tables import Ablation
from anofpdm.util.drawing import (
    BACKGROUND,
    BLUE,
    FOREGROUND,
    GRIDLINE,
    MUTED,
    ORANGE,
    Line,
    chart,
    font,
    hstack_images,
)

WIDE = (540, 280)
GREEN, VIOLET = (110, 196, 130), (186, 130, 230)


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
        Line(levels, table.column("inside"), ORANGE, "inside the lesion"),
        Line(levels, table.column("outside"), BLUE, "outside"),
    ]
    panels = [
        ("Mean magnitude of S_t", magnitudes),
        ("Inside / outside", [Line(levels, table.column("ratio"), GREEN)]),
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
        ("Image-level accuracy, best cosine threshold", "accuracy", BLUE),
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
    for colour, (name, label) in zip((ORANGE, BLUE, GREEN), names.items(), strict=True):
        lines.append(Line([quantiles[0], quantiles[-1]], [scores[name]] * 2, colour, label))
    return chart(
        lines,
        "Unhealthy DICE by threshold",
        size=WIDE,
        xlabel="fixed quantile of the map",
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
    """A panel per column, a bar per row, named by the first column."""
    names = [str(row[0]) for row in table.rows]
    return hstack_images(
        [_bars(dict(zip(names, table.column(column), strict=True)), title) for title, column in panels.items()]
    )


def _bars(values: dict[str, float], title: str) -> Image.Image:
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


def _dimmed(colour: tuple[int, int, int]) -> tuple[int, int, int]:
    red, green, blue = (int(0.55 * value) for value in colour)
    return red, green, blue
