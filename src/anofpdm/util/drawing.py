"""Small pictures without a plotting library: tiles of slices, and charts with axes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

FOREGROUND, MUTED, GRIDLINE, BACKGROUND, OUTLINE = (
    (235, 235, 235),
    (150, 150, 150),
    (60, 60, 64),
    (16, 16, 18),
    (255, 84, 64),
)
BLUE, ORANGE = (92, 148, 236), (240, 150, 60)
HEAT = np.array([(0, 0, 0), (60, 15, 90), (190, 55, 80), (250, 150, 40), (255, 250, 190)], dtype=float)

Colour = tuple[int, int, int]


def font(size: int = 11) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


# ---- tiles -----------------------------------------------------------------------------------------------------------


def grey_tile(pixels: np.ndarray, side: int) -> Image.Image:
    """[H, W] in [-1, 1] -> grey, side x side."""
    grey = Image.fromarray(np.round((np.clip(pixels, -1, 1) + 1) * 127.5).astype(np.uint8))
    return grey.resize((side, side), Image.Resampling.BICUBIC).convert("RGB")


def heat_tile(values: np.ndarray, highest: float, side: int) -> Image.Image:
    """[H, W] from 0 to `highest` -> black over red to white."""
    share = np.clip(values / max(highest, 1e-12), 0, 1) * (len(HEAT) - 1)
    colours = np.stack([np.interp(share, range(len(HEAT)), HEAT[:, band]) for band in range(3)], axis=-1)
    return Image.fromarray(colours.astype(np.uint8)).resize((side, side), Image.Resampling.BILINEAR)


def draw_outline(tile: Image.Image, mask: np.ndarray, colour: Colour = OUTLINE) -> Image.Image:
    """The tile with the pixels just outside the mask [H, W] coloured."""
    large = np.array(Image.fromarray(mask.astype(np.uint8) * 255).resize(tile.size, Image.Resampling.BILINEAR)) >= 128
    drawn = np.array(tile)
    drawn[ndimage.binary_dilation(large) & ~large] = colour
    return Image.fromarray(drawn)


# ---- charts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    colour: Colour = BLUE
    name: str = ""
    dots: bool = False
    joined: bool = True  # without: a cloud of dots
    width: int = 2


def chart(
    lines: Sequence[Line],
    title: str,
    *,
    size: tuple[int, int] = (420, 240),
    xlabel: str = "",
    vlines: Sequence[tuple[float, str]] = (),  # vertical lines, with a word each
    ylim: tuple[float, float] | None = None,
) -> Image.Image:
    """A line chart on its own axes."""
    left, top, right, bottom = 52, 40, size[0] - 12, size[1] - 34
    sheet = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((8, 6), title, FOREGROUND, font(12))
    xs = np.concatenate([np.asarray(line.x, dtype=float) for line in lines] + [np.array([at for at, _ in vlines])])
    ys = np.concatenate([np.asarray(line.y, dtype=float) for line in lines])
    low_x, high_x = _range(xs)
    low_y, high_y = ylim or _range(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            left + (right - left) * (x - low_x) / (high_x - low_x),
            bottom - (bottom - top) * (y - low_y) / (high_y - low_y),
        )

    for share in (0.0, 0.5, 1.0):
        x, y = low_x + share * (high_x - low_x), low_y + share * (high_y - low_y)
        pen.line([place(low_x, y), place(high_x, y)], GRIDLINE)
        start = max(left - 5 - pen.textlength(f"{y:.3g}", font()), 1)
        pen.text((start, place(low_x, y)[1] - 7), f"{y:.3g}", MUTED, font())
        at, half = place(x, low_y)[0], pen.textlength(f"{x:.3g}", font()) / 2
        pen.text((min(at, size[0] - 3 - half) - half, bottom + 4), f"{x:.3g}", MUTED, font())
    pen.text(((left + right) / 2 - 3 * len(xlabel), bottom + 17), xlabel, MUTED, font())
    for value, _ in vlines:
        pen.line([place(value, low_y), place(value, high_y)], MUTED)
    name_at = left + 6.0
    for line in lines:
        points = [place(float(x), float(y)) for x, y in zip(line.x, line.y, strict=True) if np.isfinite(y)]
        if len(points) > 1 and line.joined:
            pen.line(points, line.colour, line.width)
        if line.dots:
            radius = 3 if line.joined else 2
            for x, y in points:
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), line.colour)
        if line.name:
            pen.text((name_at, 22), line.name, line.colour, font())
            name_at += pen.textlength(line.name, font()) + 18
    for number, (value, word) in enumerate(vlines):  # over the lines, a row each: uprights may lie close
        at = place(value, high_y)[0]
        to_the_left = at > right - (right - left) / 5  # where a word would leave the picture on the right
        start = at - 3 - pen.textlength(word, font()) if to_the_left else at + 3
        pen.text((start, top - 2 + 12 * number), word, MUTED, font(), stroke_width=2, stroke_fill=BACKGROUND)
    return sheet


def hstack_images(pictures: Sequence[Image.Image]) -> Image.Image:
    """Several pictures in a row."""
    sheet = Image.new("RGB", (sum(p.width for p in pictures), max(p.height for p in pictures)), BACKGROUND)
    at = 0
    for picture in pictures:
        sheet.paste(picture, (at, 0))
        at += picture.width
    return sheet


def _range(values: np.ndarray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)
