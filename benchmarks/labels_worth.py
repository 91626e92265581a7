"""What are labels worth? A figure of tables that benchmarks/ceiling.py printed with --model and --patients.

    python benchmarks/labels_worth.py glioma=glioma.txt ARC=arc.txt --out labels-worth.svg

For each cohort, unhealthy and mixed DICE with their 95% intervals: dots, trained on the masks of so many patients; line
and band, the student trained on labels of all of them.
"""

import argparse
import html
import math
import re
from dataclasses import dataclass
from pathlib import Path

from plot import COLOURS, svg

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 220, 50, 40, 40
SETUPS = ("unhealthy", "mixed")
HIGHEST = 100  # of the axis of DICE
TICKS = (5, 10, 20, 40, 80, 160)  # patients


@dataclass(frozen=True)
class Score:
    patients: int | None  # whose masks were used; None: labels only
    value: float
    interval: tuple[float, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, default=Path("labels-worth.svg"))
    args = parser.parse_args()
    tables = {name: Path(path).read_text() for name, path in (word.split("=", 1) for word in args.tables)}
    found = {(name, setup): read_scores(table, setup) for name, table in tables.items() for setup in SETUPS}
    lowest = 10 * int(min(score.interval[0] for scores in found.values() for score in scores) / 10)
    parts = []
    for column, name in enumerate(tables):
        for row, setup in enumerate(SETUPS):
            axes = Axes(LEFT + column * (WIDTH + LEFT + GAP), TOP + row * (HEIGHT + 90), lowest)
            parts.append(panel(f"{html.escape(name)}, {setup} DICE", found[name, setup], axes))
    wide, high = len(args.tables) * (WIDTH + LEFT + GAP) + 10, TOP + len(SETUPS) * (HEIGHT + 90)
    args.out.write_text(svg(parts, wide, high))


def read_scores(table: str, setup: str) -> list[Score]:
    """Of one setup, from a table of benchmarks/ceiling.py."""
    lines = [line.strip().strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    names, rows = [cell.strip() for cell in lines[0]], lines[2:]
    found = []
    for cells in rows:
        row = dict(zip(names, (cell.strip() for cell in cells), strict=True))
        low, high = (float(end) for end in row[f"{setup}, 95%"].split("-"))
        count = re.match(r"masks of (\d+) patients", row["trained on"])
        found.append(Score(int(count[1]) if count else None, float(row[setup]), (low, high)))
    return found


@dataclass(frozen=True)
class Axes:
    left: float
    top: float
    lowest: int  # DICE

    def x(self, patients: float) -> float:
        return self.left + WIDTH * (0.08 + 0.84 * math.log(patients / TICKS[0]) / math.log(TICKS[-1] / TICKS[0]))

    def y(self, value: float) -> float:
        return self.top + HEIGHT * (HIGHEST - value) / (HIGHEST - self.lowest)


def panel(title: str, scores: list[Score], axes: Axes) -> str:
    left, middle, bottom = axes.left, axes.left + WIDTH / 2, axes.top + HEIGHT
    shapes = [text(middle, axes.top - 12, title), text(middle, bottom + 36, "patients with masks")]
    for tick in range(axes.lowest, HIGHEST + 1, 10):
        shapes.append(f'<path d="M{left} {axes.y(tick):.1f}h{WIDTH}" stroke="#ddd"/>')
        shapes.append(text(left - 18, axes.y(tick) + 4, str(tick)))
    shapes += [text(axes.x(tick), bottom + 18, str(tick)) for tick in TICKS]
    return "\n".join([*shapes, *(shape(score, axes) for score in scores)])


def shape(score: Score, axes: Axes) -> str:
    left, (y, high, low) = axes.left, (axes.y(value) for value in (score.value, score.interval[1], score.interval[0]))
    if score.patients is None:
        band = f'<rect x="{left}" y="{high:.1f}" width="{WIDTH}" height="{low - high:.1f}" fill="{COLOURS[1]}" '
        line = f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="{COLOURS[1]}" stroke-width="2"/>'
        words = text(left + WIDTH - 4, low + 14, f"labels only: {score.value:.1f}", "end")
        return f'{band}opacity="0.15"/>{line}{words}'
    x = axes.x(score.patients)
    bar = f'<path d="M{x:.1f} {high:.1f}V{low:.1f}" stroke="{COLOURS[0]}" stroke-width="2"/>'
    return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0]}"/>'


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


if __name__ == "__main__":
    main()
