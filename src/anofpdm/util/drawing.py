"""Small images drawn without a plotting library: tiles of slices, and line charts."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

FOREGROUND, MUTED, GRIDLINE, BACKGROUND = (235, 235, 235), (150, 150, 150), (60, 60, 64), (16, 16, 18)
OUTLINE, BLUE, ORANGE = (255, 84, 64), (92, 148, 236), (240, 150, 60)
HEAT = np.array([(0, 0, 0), (60, 15, 90), (190, 55, 80), (250, 150, 40), (255, 250, 190)], dtype=float)

Colour = tuple[int, int, int]


@cache
def font(size: int = 11) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def encode_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=3)  # half the time of the default, and files that are 7% larger
    return buffer.getvalue()


def grey_tile(pixels: np.ndarray, side: int) -> Image.Image:
    """[H, W] in [-1, 1] -> grey, side x side."""
    grey = Image.fromarray(np.round((np.clip(pixels, -1, 1) + 1) * 127.5).astype(np.uint8))
    return grey.resize((side, side), Image.Resampling.BICUBIC).convert("RGB")


def heat_tile(values: np.ndarray, highest: float, side: int) -> Image.Image:
    """[H, W] from 0 to `highest` -> colours from black through red to white."""
    share = np.clip(values / max(highest, 1e-12), 0, 1) * (len(HEAT) - 1)
    colours = np.stack([np.interp(share, range(len(HEAT)), HEAT[:, band]) for band in range(3)], axis=-1)
    return Image.fromarray(colours.astype(np.uint8)).resize((side, side), Image.Resampling.BILINEAR)


def draw_outline(tile: Image.Image, mask: np.ndarray, colour: Colour = OUTLINE, width: int = 1) -> Image.Image:
    """The tile with the pixels just outside the mask [H, W] coloured."""
    large = np.array(Image.fromarray(mask.astype(np.uint8) * 255).resize(tile.size, Image.Resampling.BILINEAR)) >= 128
    drawn = np.array(tile)
    drawn[ndimage.binary_dilation(large, iterations=width) & ~large] = colour
    return Image.fromarray(drawn)


def mark_sides(tile: Image.Image, left: str = "R", right: str = "L") -> Image.Image:
    """The tile with a letter at its left and right edge. In axial slices, the patient's right is on the left."""
    pen, middle = ImageDraw.Draw(tile), tile.height // 2 - 7
    for x, letter in ((3.0, left), (tile.width - 3 - pen.textlength(right, font()), right)):
        pen.text((x, middle), letter, FOREGROUND, font(), stroke_width=1, stroke_fill=BACKGROUND)
    return tile


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
    xs = np.concatenate([np.asarray(line.x, dtype=float) for line in lines] + [np.array([at for at, _ in vlines])])
    ys = np.concatenate([np.asarray(line.y, dtype=float) for line in lines])
    axes = _Axes(size, _range(xs), ylim or _range(ys), log_x=log_x)
    image = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((8, 6), title, FOREGROUND, font(12))
    _draw_ticks(pen, axes, xlabel)
    for value, _ in vlines:
        pen.line([axes.position(value, axes.ylim[0]), axes.position(value, axes.ylim[1])], MUTED)
    legend_x = axes.left + 6.0
    for line in lines:
        _draw_line(pen, axes, line)
        if line.name:
            pen.text((legend_x, 22), line.name, line.colour, font())
            legend_x += pen.textlength(line.name, font()) + 18
    for row, (value, caption) in enumerate(vlines):  # on top of the lines, a row each: they may be close together
        x = axes.position(value, axes.ylim[1])[0]
        no_space = x > axes.right - (axes.right - axes.left) / 5  # to the right of the line
        start = x - 3 - pen.textlength(caption, font()) if no_space else x + 3
        pen.text((start, axes.top - 2 + 12 * row), caption, MUTED, font(), stroke_width=2, stroke_fill=BACKGROUND)
    return image


@dataclass(frozen=True)
class _Axes:
    size: tuple[int, int]
    xlim: tuple[float, float]
    ylim: tuple[float, float]
    left: int = 52
    top: int = 40
    log_x: bool = False

    @property
    def right(self) -> int:
        return self.size[0] - 12

    @property
    def bottom(self) -> int:
        return self.size[1] - 34

    def position(self, x: float, y: float) -> tuple[float, float]:
        """In pixels."""
        (low_x, high_x), (low_y, high_y) = self.xlim, self.ylim
        return (
            self.left + (self.right - self.left) * (x - low_x) / (high_x - low_x),
            self.bottom - (self.bottom - self.top) * (y - low_y) / (high_y - low_y),
        )


def _draw_ticks(pen: ImageDraw.ImageDraw, axes: _Axes, xlabel: str) -> None:
    (low_x, high_x), (low_y, high_y) = axes.xlim, axes.ylim
    for share in (0.0, 0.5, 1.0):
        x, y = low_x + share * (high_x - low_x), low_y + share * (high_y - low_y)
        pen.line([axes.position(low_x, y), axes.position(high_x, y)], GRIDLINE)
        start = max(axes.left - 5 - pen.textlength(f"{y:.3g}", font()), 1)
        pen.text((start, axes.position(low_x, y)[1] - 7), f"{y:.3g}", MUTED, font())
        label = f"{10**x if axes.log_x else x:.3g}"
        at, half = axes.position(x, low_y)[0], pen.textlength(label, font()) / 2
        pen.text((min(at, axes.size[0] - 3 - half) - half, axes.bottom + 4), label, MUTED, font())
    pen.text(((axes.left + axes.right) / 2 - 3 * len(xlabel), axes.bottom + 17), xlabel, MUTED, font())


def _draw_line(pen: ImageDraw.ImageDraw, axes: _Axes, line: Line) -> None:
    points = [axes.position(float(x), float(y)) for x, y in zip(line.x, line.y, strict=True) if np.isfinite(y)]
    if len(points) > 1 and line.joined:
        pen.line(points, line.colour, line.width)
    if line.dots:
        radius = 3 if line.joined else 2
        for x, y in points:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), line.colour)


def hstack_images(images: Sequence[Image.Image]) -> Image.Image:
    """Several images in a row."""
    row = Image.new("RGB", (sum(image.width for image in images), max(image.height for image in images)), BACKGROUND)
    left = 0
    for image in images:
        row.paste(image, (left, 0))
        left += image.width
    return row


def _range(values: np.ndarray) -> tuple[float, float]:
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)
