"""All slices of a scan in one PNG: a sheet of tiles, row by row, that the page's script cuts into slices."""

import base64
import math

import numpy as np
from PIL import Image

from anofpdm.util.drawing import HEAT, encode_png

GREYS = 255
HEAT_COLOURS = np.stack(
    [np.interp(np.linspace(0, len(HEAT) - 1, GREYS + 1), range(len(HEAT)), HEAT[:, band]) for band in range(3)], axis=-1
)  # [256, 3], black over red to white


def column_count(slices: int) -> int:
    """Columns of a nearly square sheet."""
    return max(1, math.ceil(math.sqrt(slices)))


def encode_grey_sheet(pixels: np.ndarray) -> bytes:
    """[n, H, W] in [-1, 1] -> 8-bit PNG."""
    shades = np.clip(pixels.astype(np.float32), -1, 1) + 1
    return encode_png(Image.fromarray(tile_slices(np.round(shades * (GREYS / 2)).astype(np.uint8))))


def encode_heat_sheet(maps: np.ndarray, maximum: float) -> bytes:
    """[n, H, W], from 0 to `maximum` -> PNG with the heat colours as palette."""
    share = np.clip(np.nan_to_num(maps) / max(maximum, 1e-12), 0, 1)
    image = Image.fromarray(tile_slices(np.round(share * GREYS).astype(np.uint8)))
    image.putpalette(HEAT_COLOURS.astype(np.uint8).tobytes())
    return encode_png(image)


def encode_mask_sheet(masks: np.ndarray) -> bytes:
    """bool [n, H, W] -> 1-bit PNG."""
    return encode_png(Image.fromarray(tile_slices(masks.astype(np.uint8) * GREYS)).convert("1"))


def tile_slices(slices: np.ndarray) -> np.ndarray:
    """[n, H, W] -> [rows * H, columns * W]; unused tiles are zero."""
    n, height, width = slices.shape
    columns = column_count(n)
    rows = math.ceil(n / columns)
    padded = np.zeros((rows * columns, height, width), slices.dtype)
    padded[:n] = slices
    return padded.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(rows * height, columns * width)


def data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
