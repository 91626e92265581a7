"""Line charts with logarithmic axes, side by side, as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plot import COLOURS, svg

WIDTH, HEIGHT, LEFT, TOP, GAP = 320, 260, 60, 40, 40


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[tuple[float, float]]  # all above 0


@dataclass(frozen=True)
class Panel:
    title: str
    x_name: str
    series: Sequence[Series]


@dataclass(frozen=True)
class Axis:
    """Powers of ten that contain all values, at least one decade."""

    low: int
    high: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Axis":
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1))

    def place(self, value: float) -> float:
        """0 to 1."""
        return (math.log10(value) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def draw_panels(panels: Sequence[Panel], names: Sequence[str], path: Path) -> None:
    """`names`: of all series, in the order of their colours."""
    colours = dict(zip(names, COLOURS, strict=False))
    parts = [_panel(panel, LEFT + number * (WIDTH + LEFT + GAP), colours) for number, panel in enumerate(panels)]
    wide = len(panels) * (WIDTH + LEFT + GAP)
    high = TOP + HEIGHT + 60 + 20 * math.ceil(len(names) / 4)
    path.write_text(svg([*parts, _key(colours, wide)], wide, high))


def _panel(panel: Panel, left: float, colours: dict[str, str]) -> str:
    points = [point for one in panel.series for point in one.points]
    x_axis, y_axis = (Axis.of([point[side] for point in points]) for side in (0, 1))
    shapes = [_text(left + WIDTH / 2, TOP - 12, panel.title), _text(left + WIDTH / 2, TOP + HEIGHT + 36, panel.x_name)]
    for tick in y_axis.ticks:
        y = TOP + HEIGHT * (1 - y_axis.place(tick))
        shapes += [f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#ddd"/>', _text(left - 8, y + 4, f"{tick:g}", "end")]
    for tick in x_axis.ticks:
        x = left + WIDTH * x_axis.place(tick)
        shapes += [f'<path d="M{x:.1f} {TOP}v{HEIGHT}" stroke="#ddd"/>', _text(x, TOP + HEIGHT + 18, f"{tick:g}")]
    for one in panel.series:
        places = [(left + WIDTH * x_axis.place(x), TOP + HEIGHT * (1 - y_axis.place(y))) for x, y in one.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        colour = colours[one.name]
        shapes.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        shapes += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return "\n".join(shapes)


def _key(colours: dict[str, str], wide: float) -> str:
    shapes = []
    for number, (name, colour) in enumerate(colours.items()):
        x, y = LEFT + (number % 4) * (wide - LEFT) / 4, TOP + HEIGHT + 50 + 20 * (number // 4)
        shapes.append(f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{colour}"/>')
        shapes.append(_text(x + 18, y + 11, name, "start"))
    return "\n".join(shapes)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
