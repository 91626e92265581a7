"""SVG figure of results of `anofpdm evaluate`: DICE by lesion size, and volume DICE of each patient.

    python benchmarks/plot.py DIR... [--out figure.svg]

If several folders contain a method, the last one is used.
"""

import argparse
import csv
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

EDGES = (0, 50, 200, 500, 1000, np.inf)  # pixels of a lesion, as in table.md
COLOURS = ("#4477aa", "#ee7733", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#888888")
WIDTH, HEIGHT, LEFT, TOP, GAP = 340, 240, 50, 40, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("figure.svg"))
    args = parser.parse_args()
    slices, patients = (_rows([folder / name for folder in args.folders]) for name in ("slices.csv", "patients.csv"))
    methods = [name for name in dict.fromkeys(row["method"] for row in slices) if name != "all-empty"]
    parts = [_key(methods), _by_size(slices, methods, LEFT), _by_patient(patients, methods, 2 * LEFT + WIDTH + GAP)]
    wide, high = 2 * (LEFT + WIDTH) + GAP + 20, TOP + HEIGHT + 70
    args.out.write_text(svg(parts, wide, high))


def svg(parts: Sequence[str], wide: float, high: float) -> str:
    """A picture of these shapes on white."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'font-family="sans-serif" font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def _rows(paths: Sequence[Path]) -> list[dict[str, str]]:
    """Of the first seed."""
    by_method: dict[str, list[dict[str, str]]] = {}
    for path in paths:
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row["seed"] == "0"]
        by_method |= {name: [row for row in rows if row["method"] == name] for name in {row["method"] for row in rows}}
    return [row for name in sorted(by_method) for row in by_method[name]]


def _by_size(rows: Iterable[dict[str, str]], methods: Sequence[str], left: float) -> str:
    """Bars: the mean of slices with a lesion of so many pixels, without a detector."""
    bins = list(pairwise(EDGES))
    kept = [row for row in rows if row["setup"] == "unhealthy"]
    step = WIDTH / len(bins)
    shapes = [_axes(left, "DICE by lesion size in pixels, unhealthy slices")]
    for place, (low, high) in enumerate(bins):
        name = f"{low + 1:g}-{high:g}" if np.isfinite(high) else f"over {low:g}"
        shapes.append(_words(left + (place + 0.5) * step, TOP + HEIGHT + 18, name))
        for number, method in enumerate(methods):
            of = [
                float(row["dice"])
                for row in kept
                if row["method"] == method and low < int(row["lesion_pixels"]) <= high
            ]
            wide = 0.8 * step / len(methods)
            x, tall = left + (place + 0.1) * step + number * wide, HEIGHT * (np.mean(of) if of else 0)
            shapes.append(
                f'<rect x="{x:.1f}" y="{TOP + HEIGHT - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
                f'fill="{COLOURS[number]}"/>'
            )
    return "\n".join(shapes)


def _by_patient(rows: Iterable[dict[str, str]], methods: Sequence[str], left: float) -> str:
    """Dots, the patients in the order of the last method."""
    dice = {
        method: {r["patient"]: float(r["volume_dice"]) for r in rows if (r["method"], r["setup"]) == (method, "mixed")}
        for method in methods
    }
    order = sorted(dice[methods[-1]], key=dice[methods[-1]].__getitem__)
    shapes = [
        _axes(left, "volume DICE of each patient, all slices"),
        _words(left + WIDTH / 2, TOP + HEIGHT + 18, "patients"),
    ]
    for number, method in enumerate(methods):
        for place, patient in enumerate(order):
            x = left + (place + 0.5) * WIDTH / len(order)
            y = TOP + HEIGHT * (1 - dice[method][patient])
            shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[number]}"/>')
    return "\n".join(shapes)


def _axes(left: float, title: str) -> str:
    shapes = [_words(left + WIDTH / 2, TOP - 12, title)]
    for tenth in range(0, 11, 2):
        y = TOP + HEIGHT * (1 - tenth / 10)
        shapes.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>')
        shapes.append(_words(left - 16, y + 4, f"{tenth / 10:g}"))
    return "\n".join(shapes)


def _key(methods: Sequence[str]) -> str:
    y = TOP + HEIGHT + 45
    return "\n".join(
        f'<rect x="{LEFT + 170 * number}" y="{y}" width="12" height="12" fill="{COLOURS[number]}"/>'
        + f'<text x="{LEFT + 170 * number + 18}" y="{y + 11}">{method}</text>'
        for number, method in enumerate(methods)
    )


def _words(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{words}</text>'


if __name__ == "__main__":
    main()
