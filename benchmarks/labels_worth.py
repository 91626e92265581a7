"""What are labels worth? A figure of tables that benchmarks/ceiling.py printed with --model and --patients.

    python benchmarks/labels_worth.py glioma=glioma.txt ARC=arc.txt --out labels-worth.svg

For each cohort, unhealthy and mixed DICE with their 95% intervals: dots, trained on the masks of so many patients; line
and band, the student trained on labels of all of them.
"""

import argparse
import math
import re
from dataclasses import dataclass
from pathlib import Path

from plot import COLOURS

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 220, 50, 40, 40
SETUPS = ("unhealthy", "mixed")
LOWEST, HIGHEST = 50.0, 100.0  # of the axis of DICE
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
    parts = []
    for column, (name, path) in enumerate(word.split("=", 1) for word in args.tables):
        table = Path(path).read_text()
        for row, setup in enumerate(SETUPS):
            corner = LEFT + column * (WIDTH + LEFT + GAP), TOP + row * (HEIGHT + 90)
            parts.append(panel(f"{name}, {setup} DICE", read_scores(table, setup), *corner))
    wide, high = len(args.tables) * (WIDTH + LEFT + GAP) + 10, TOP + len(SETUPS) * (HEIGHT + 90)
    args.out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'font-family="sans-serif" font-size="12" fill="#333"><rect width="100%" height="100%" fill="#fff"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


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


def panel(title: str, scores: list[Score], left: float, top: float) -> str:
    shapes = [text(left + WIDTH / 2, top - 12, title), text(left + WIDTH / 2, top + HEIGHT + 36, "patients with masks")]
    for tick in range(int(LOWEST), int(HIGHEST) + 1, 10):
        shapes.append(f'<path d="M{left} {place_y(tick, top):.1f}h{WIDTH}" stroke="#ddd"/>')
        shapes.append(text(left - 18, place_y(tick, top) + 4, str(tick)))
    shapes += [text(place_x(tick, left), top + HEIGHT + 18, str(tick)) for tick in TICKS]
    return "\n".join([*shapes, *(shape(score, left, top) for score in scores)])


def shape(score: Score, left: float, top: float) -> str:
    y, high, low = (place_y(value, top) for value in (score.value, score.interval[1], score.interval[0]))
    if score.patients is None:
        band = f'<rect x="{left}" y="{high:.1f}" width="{WIDTH}" height="{low - high:.1f}" fill="{COLOURS[1]}" '
        line = f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="{COLOURS[1]}" stroke-width="2"/>'
        words = text(left + WIDTH - 4, low + 14, f"labels only: {score.value:.1f}", "end")
        return f'{band}opacity="0.15"/>{line}{words}'
    x = place_x(score.patients, left)
    bar = f'<path d="M{x:.1f} {high:.1f}V{low:.1f}" stroke="{COLOURS[0]}" stroke-width="2"/>'
    return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[0]}"/>'


def place_x(patients: float, left: float) -> float:
    return left + WIDTH * (0.08 + 0.84 * math.log(patients / TICKS[0]) / math.log(TICKS[-1] / TICKS[0]))


def place_y(value: float, top: float) -> float:
    return top + HEIGHT * (HIGHEST - value) / (HIGHEST - LOWEST)


def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


if __name__ == "__main__":
    main()
