"""Small images drawn without a plotting library: tiles of slices, sheets of them, and line charts."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont, ImageOps
from scipy import ndimage

FOREGROUND, MUTED, GRIDLINE, BACKGROUND = (235, 235, 235), (150, 150, 150), (60, 60, 64), (16, 16, 18)
OUTLINE, BLUE, ORANGE = (255, 84, 64), (92, 148, 236), (240, 150, 60)
HEAT = [(0, 0, 0), (60, 15, 90), (190, 55, 80), (250, 150, 40), (255, 250, 190)]
HEAT_COLOURS = np.stack(
    [np.interp(np.linspace(0, len(HEAT) - 1, 256), range(len(HEAT)), band) for band in zip(*HEAT, strict=True)], axis=-1
).astype(np.uint8)  # [256, 3], black over red to white
GAP = 6  # between the images of a sheet, pixels
LEFT, RIGHT, TOP, BOTTOM = 60, 26, 40, 34  # margins of a chart, pixels

Colour = tuple[int, int, int]


@cache
def font(size: int = 11) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)  # half the time of the default, and files that are 7% larger
    return buffer.getvalue()


def grey_levels(pixels: np.ndarray) -> np.ndarray:
    """From -1 to 1 -> uint8."""
    return np.round((np.clip(pixels, -1, 1) + 1) * 127.5).astype(np.uint8)


def heat_levels(values: np.ndarray, highest: float) -> np.ndarray:
    """From 0 to `highest` -> uint8, indices of HEAT_COLOURS."""
    return np.round(np.clip(values / max(highest, 1e-12), 0, 1) * 255).astype(np.uint8)


def grey_tile(pixels: np.ndarray, side: int) -> Image.Image:
    """[H, W] in [-1, 1] -> grey, side x side."""
    return Image.fromarray(grey_levels(pixels)).resize((side, side), Image.Resampling.BICUBIC).convert("RGB")


def heat_tile(values: np.ndarray, highest: float, side: int) -> Image.Image:
    """[H, W] from 0 to `highest` -> colours from black through red to white."""
    return Image.fromarray(HEAT_COLOURS[heat_levels(values, highest)]).resize((side, side), Image.Resampling.BILINEAR)


def annotate(tile: Image.Image, outlines: Mapping[Colour, np.ndarray], sides: str = "") -> Image.Image:
    """The tile with the outline of each mask [H, W] in its colour, and a letter at its left and right edge.

    In axial slices, the patient's right is on the left. Earlier outlines are wider: visible below later ones.
    """
    drawn = np.array(tile)
    for number, (colour, mask) in enumerate(outlines.items()):
        shades = Image.fromarray(mask.astype(np.uint8) * 255).resize(tile.size, Image.Resampling.BILINEAR)
        inside = np.array(shades) >= 128
        drawn[ndimage.binary_dilation(inside, iterations=len(outlines) - number) & ~inside] = colour
    annotated = Image.fromarray(drawn)
    pen = ImageDraw.Draw(annotated)
    for letter, x, anchor in zip(sides, (3, tile.width - 3), ("lm", "rm"), strict=False):
        place = (x, tile.height // 2)
        pen.text(place, letter, FOREGROUND, font(), anchor=anchor, stroke_width=1, stroke_fill=BACKGROUND)
    return annotated


# ---- sheets ----------------------------------------------------------------------------------------------------------


def captioned(image: Image.Image, caption: str, colour: Colour = MUTED, size: int = 11) -> Image.Image:
    """The image below its caption, which may have several lines."""
    height = (size + 4) * len(caption.split("\n")) + 3
    extended = Image.new("RGB", (image.width, height + image.height), BACKGROUND)
    ImageDraw.Draw(extended).text((0, 0), caption, colour, font(size))
    extended.paste(image, (0, height))
    return extended


def arrange(rows: Sequence[Sequence[Image.Image]], gap: int = GAP) -> Image.Image:
    """Rows of images in one; those of a row are aligned at the top."""
    heights = [max(image.height for image in row) for row in rows]
    width = max(sum(image.width + gap for image in row) for row in rows) - gap
    arranged = Image.new("RGB", (width, sum(heights) + gap * (len(rows) - 1)), BACKGROUND)
    top = 0
    for row, height in zip(rows, heights, strict=True):
        left = 0
        for image in row:
            arranged.paste(image, (left, top))
            left += image.width + gap
        top += height + gap
    return arranged


def draw_sheet(rows: Sequence[Sequence[Image.Image]], title: str) -> bytes:
    """PNG of rows of images below a title."""
    return encode_png(ImageOps.expand(captioned(arrange(rows), title, FOREGROUND, 13), GAP, BACKGROUND))


def space_evenly(items: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` of them, at equal distances."""
    count = min(limit, len(items))
    return items[((np.arange(count) + 0.5) / count * len(items)).astype(int)]


def choose_slices(areas: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` of the slices with a lesion, at equal distances; of all slices if there is none."""
    return space_evenly(np.flatnonzero(areas) if areas.any() else np.arange(len(areas)), limit)


# ---- charts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    colour: Colour = BLUE
    name: str = ""
    dots: bool = False
    joined: bool = True  # False: a scatter plot
    width: int = 2


def chart(
    lines: Sequence[Line],
    title: str,
    *,
    size: tuple[int, int] = (420, 240),
    xlabel: str = "",
    vlines: Sequence[tuple[float, str]] = (),  # vertical lines, each with a caption
    ylim: tuple[float, float] | None = None,
    log_x: bool = False,  # x is given as log10, and labelled with the number itself
) -> Image.Image:
    """A line chart on axes of its own."""
    xs = np.concatenate([*(line.x for line in lines), [at for at, _ in vlines]])
    axes = _Axes(size, _range(xs), ylim or _range(np.concatenate([line.y for line in lines])))
    image = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((8, 6), title, FOREGROUND, font(12))
    _draw_ticks(pen, axes, log_x)
    pen.text((size[0] / 2, size[1] - 17), xlabel, MUTED, font(), anchor="ma")
    legend_x = LEFT + 6.0
    for line in lines:
        _draw_line(pen, axes, line)
        pen.text((legend_x, 22), line.name, line.colour, font())
        legend_x += pen.textlength(line.name, font()) + 18 * bool(line.name)
    for row, (at, caption) in enumerate(vlines):  # captions have a row each: they may be close together
        x = float(axes.x(at))
        pen.line([(x, TOP), (x, size[1] - BOTTOM)], MUTED)
        anchor, caption_x = ("ra", x - 3) if x > 0.8 * size[0] else ("la", x + 3)
        place = (caption_x, TOP - 2 + 12 * row)
        pen.text(place, caption, MUTED, font(), anchor=anchor, stroke_width=2, stroke_fill=BACKGROUND)
    return image


@dataclass(frozen=True)
class _Axes:
    """Values to pixels."""

    size: tuple[int, int]
    xlim: tuple[float, float]
    ylim: tuple[float, float]

    def x(self, values: ArrayLike) -> np.ndarray:
        return np.interp(np.asarray(values), self.xlim, (LEFT, self.size[0] - RIGHT))

    def y(self, values: ArrayLike) -> np.ndarray:
        return np.interp(np.asarray(values), self.ylim, (self.size[1] - BOTTOM, TOP))


def _draw_ticks(pen: ImageDraw.ImageDraw, axes: _Axes, log_x: bool) -> None:
    width, height = axes.size
    for value in np.linspace(*axes.ylim, 3):
        y = float(axes.y(value))
        pen.line([(LEFT, y), (width - RIGHT, y)], GRIDLINE)
        pen.text((LEFT - 5, y), f"{value:.3g}", MUTED, font(), anchor="rm")
    for value in np.linspace(*axes.xlim, 3):
        place = (float(axes.x(value)), height - BOTTOM + 4)
        pen.text(place, f"{10**value if log_x else value:.3g}", MUTED, font(), anchor="ma")


def _draw_line(pen: ImageDraw.ImageDraw, axes: _Axes, line: Line) -> None:
    pixels = zip(axes.x(line.x).tolist(), axes.y(line.y).tolist(), strict=True)
    points = [(x, y) for x, y in pixels if math.isfinite(y)]
    if line.joined:
        pen.line(points, line.colour, line.width)
    if line.dots:
        for point in points:
            pen.circle(point, 3 if line.joined else 2, line.colour)


def _range(values: np.ndarray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)
