"""The figure of how the method works, as SVG; docs/tools/figure.py gathers what it shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1000, 396
TILE, GAP = 88, 6
LEFT, TOP = 322, 66  # of the tiles of noise levels
INK, MUTED, RED, BLUE = "#222222", "#666666", "#cc3311", "#4477aa"
ROW_NAMES = (
    ("noisy slice", "x_t"),
    ("estimate with the", "label healthy, g_t"),
    ("estimate without", "a label, u_t"),
)


@dataclass(frozen=True)
class Pictures:
    """Pictures are data addresses of PNG files."""

    unhealthy: str
    healthy: str
    levels: tuple[tuple[int, str, str, str], ...]  # t, noisy slice, guided and unguided estimate
    map: str
    mask: str
    steps: tuple[int, ...]  # all noise levels
    divergence: tuple[tuple[float, ...], ...]  # of the unhealthy and the healthy slice, at each of `steps`


def draw_method(pictures: Pictures) -> str:
    parts = [*_training(pictures), *_levels(pictures), *_comparison(pictures), *_mask(pictures)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _training(pictures: Pictures) -> list[str]:
    return [
        _title(20, "1  Train: a label per slice"),
        _image(pictures.unhealthy, 20, TOP, TILE),
        _text(20, TOP + TILE + 15, "unhealthy"),
        _image(pictures.healthy, 20 + TILE + GAP, TOP, TILE),
        _text(20 + TILE + GAP, TOP + TILE + 15, "healthy"),
        _arrow(20 + TILE + GAP / 2, TOP + TILE + 24, 20 + TILE + GAP / 2, TOP + TILE + 48),
        f'<rect x="20" y="{TOP + TILE + 52}" width="{2 * TILE + GAP}" height="62" rx="6" '
        f'fill="#eef2f6" stroke="{BLUE}"/>',
        _text(20 + TILE + GAP / 2, TOP + TILE + 78, "diffusion model", "middle", bold=True),
        _text(20 + TILE + GAP / 2, TOP + TILE + 97, "predicts noise, given a label", "middle"),
        _text(20, TOP + TILE + 138, "No lesion is outlined, neither", colour=MUTED),
        _text(20, TOP + TILE + 154, "for training nor for thresholds.", colour=MUTED),
    ]


def _levels(pictures: Pictures) -> list[str]:
    parts = [_title(LEFT - 92, "2  Add noise; at each level, estimate the clean slice twice")]
    for column, (t, *row) in enumerate(pictures.levels):
        x = LEFT + 14 + column * (TILE + GAP)
        parts.append(_text(x + TILE / 2, TOP - 8, f"t = {t}", "middle", colour=MUTED))
        parts += [_image(tile, x, TOP + line * (TILE + GAP), TILE) for line, tile in enumerate(row)]
    for line, words in enumerate(ROW_NAMES):
        y = TOP + line * (TILE + GAP) + TILE / 2
        parts += [_text(LEFT + 6, y + 15 * number - 2, word, "end") for number, word in enumerate(words)]
    below = TOP + 3 * (TILE + GAP) + 16
    return [
        *parts,
        _text(LEFT + 14, below, "Guided towards healthy, the estimate changes where the lesion is.", colour=MUTED),
    ]


def _comparison(pictures: Pictures) -> list[str]:
    left, top, wide, high = 752, TOP, 226, 104
    most = max(map(max, pictures.divergence))
    last = pictures.steps[-1]
    end = pictures.steps[max(range(len(pictures.steps)), key=lambda n: pictures.divergence[0][n])]
    at = left + wide * end / last

    def line(curve: Sequence[float], colour: str) -> str:
        points = zip(pictures.steps, curve, strict=True)
        path = " ".join(f"{left + wide * t / last:.1f},{top + high * (1 - value / most):.1f}" for t, value in points)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>'

    return [
        _title(left - 12, "3  Compare: healthy or not?"),
        f'<path d="M{left} {top} V{top + high} H{left + wide}" fill="none" stroke="{MUTED}"/>',
        f'<path d="M{at:.1f} {top} V{top + high}" stroke="{MUTED}" stroke-dasharray="3 3"/>',
        line(pictures.divergence[0], RED),
        line(pictures.divergence[1], BLUE),
        _text(left - 12, top - 8, "divergence of the two estimates", colour=MUTED),
        _text(left + wide, top + 48, "this slice", "end", colour=RED),
        _text(left + wide, top + high - 18, "a healthy slice", "end", colour=BLUE),
        _text(at, top + high + 15, "t_e", "middle"),
        _text(left, top + high + 15, "noise level t", colour=MUTED),
    ]


def _mask(pictures: Pictures) -> list[str]:
    left, top, side = 752, TOP + 158, 106
    return [
        _title(left - 12, "4  Locate: map and mask", top - 14),
        _image(pictures.map, left, top, side),
        _image(pictures.mask, left + side + 14, top, side),
        _text(left, top + side + 16, "mean (g_t - x_0)²"),
        _text(left, top + side + 31, "up to t_e"),
        _text(left + side + 14, top + side + 16, "above a threshold"),
        _text(left + side + 14, top + side + 31, "from labels"),
    ]


def _title(x: float, words: str, y: float = 28) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="14" font-weight="bold">{escape(words)}</text>'


def _text(x: float, y: float, words: str, anchor: str = "start", *, colour: str = INK, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(words)}</text>'


def _image(address: str, x: float, y: float, side: float) -> str:
    return f'<image href="{address}" x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}"/>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    head = f"M{to_x - 5:g} {to_y - 7:g} L{to_x:g} {to_y:g} L{to_x + 5:g} {to_y - 7:g}"
    return f'<path d="M{x:g} {y:g} L{to_x:g} {to_y:g} {head}" fill="none" stroke="{MUTED}" stroke-width="1.5"/>'
