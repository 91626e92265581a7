"""All slices of a scan in one picture: a sheet of tiles, row by row, that a page cuts up again."""

import base64
import math

import numpy as np
from PIL import Image

from anofpdm.util.drawing import HEAT, encode_png

GREYS = 255
HEAT_COLOURS = np.stack(
    [np.interp(np.linspace(0, len(HEAT) - 1, GREYS + 1), range(len(HEAT)), HEAT[:, band]) for band in range(3)], axis=-1
)  # [256, 3], black over red to white


def columns_of(count: int) -> int:
    """As square a sheet as can be."""
    return max(1, math.ceil(math.sqrt(count)))


def grey_sheet(pixels: np.ndarray) -> bytes:
    """[n, H, W] in [-1, 1] -> PNG of 8 bits."""
    shades = np.clip(pixels.astype(np.float32), -1, 1) + 1
    return encode_png(Image.fromarray(tiled(np.round(shades * (GREYS / 2)).astype(np.uint8))))


def heat_sheet(maps: np.ndarray, highest: float) -> bytes:
    """[n, H, W], from 0 to `highest` -> PNG whose palette is the heat colours."""
    share = np.clip(np.nan_to_num(maps) / max(highest, 1e-12), 0, 1)
    image = Image.fromarray(tiled(np.round(share * GREYS).astype(np.uint8)))
    image.putpalette(HEAT_COLOURS.astype(np.uint8).tobytes())
    return encode_png(image)


def mask_sheet(masks: np.ndarray) -> bytes:
    """bool [n, H, W] -> PNG of 1 bit."""
    return encode_png(Image.fromarray(tiled(masks.astype(np.uint8) * GREYS)).convert("1"))


def tiled(slices: np.ndarray) -> np.ndarray:
    """[n, H, W] -> [rows * H, columns * W], zeros where tiles are left over."""
    n, height, width = slices.shape
    columns = columns_of(n)
    rows = math.ceil(n / columns)
    whole = np.zeros((rows * columns, height, width), slices.dtype)
    whole[:n] = slices
    return whole.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(rows * height, columns * width)


def data_uri(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
