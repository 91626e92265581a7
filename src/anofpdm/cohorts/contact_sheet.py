"""Contact sheet of a prepared cohort: the network's input, to be checked before training."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import MASKS
from anofpdm.labels import LABEL_NAMES, UNHEALTHY
from anofpdm.util.drawing import BACKGROUND, FOREGROUND, MUTED, draw_outline, encode_png, font, grey_tile, mark_sides
from anofpdm.util.files import write_atomically

TILE, GAP, CAPTION, HEADING = 144, 6, 32, 30
TILES_PER_ROW, MAX_ROWS = 8, 6


def draw_contact_sheet(cohort: Cohort, path: Path) -> None:
    """Slices of scans spread over the cohort, in every modality; lesions are outlined where there are masks."""
    across = max(1, TILES_PER_ROW // len(cohort.modalities))
    slices = [_draw_slice(cohort, row) for row in choose_rows(cohort, across * MAX_ROWS)]
    width, height = slices[0].size
    sheet = Image.new("RGB", (across * width, HEADING + -(-len(slices) // across) * height), BACKGROUND)
    heading = f"{cohort.manifest.kind}, {len(cohort):,} slices of {', '.join(cohort.modalities)}"
    ImageDraw.Draw(sheet).text((GAP, 8), heading, FOREGROUND, font(13))
    for number, image in enumerate(slices):
        sheet.paste(image, (number % across * width, HEADING + number // across * height))
    write_atomically(path, encode_png(sheet))


def choose_rows(cohort: Cohort, limit: int) -> list[int]:
    """Up to `limit` slices from as many scans as possible."""
    scans = _spread(np.unique(cohort.scans), limit)
    count = max(1, limit // len(scans))
    return [int(row) for scan in scans for row in _spread(_inner_rows(cohort, scan), count)]


def _inner_rows(cohort: Cohort, scan: str) -> np.ndarray:
    """The middle half of the scan's slices; of those, the unhealthy ones if there are any."""
    rows = np.flatnonzero(cohort.scans == scan)
    inner = rows[len(rows) // 4 : max(len(rows) - len(rows) // 4, 1)]
    unhealthy = inner[cohort.labels[inner] == UNHEALTHY]
    return unhealthy if len(unhealthy) else inner


def _spread(items: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of them, at equal distances."""
    steps = (np.arange(count) + 0.5) / count * len(items)
    return items[np.unique(steps.astype(int))]


def _draw_slice(cohort: Cohort, row: int) -> Image.Image:
    """The modalities side by side, below a caption."""
    image = Image.new("RGB", (len(cohort.modalities) * (TILE + GAP) + GAP, CAPTION + TILE + GAP), BACKGROUND)
    pen = ImageDraw.Draw(image)
    details = f"slice {cohort.indices[row] + 1}, {LABEL_NAMES[cohort.labels[row]]}, {cohort.splits[row]}"
    for line, text in enumerate((str(cohort.scans[row]), details)):
        pen.text((GAP, 14 * line), text, MUTED, font(11))
    mask = None
    if (cohort.path / MASKS).is_file():
        packed = np.load(cohort.path / MASKS, mmap_mode="r")[row]
        mask = np.unpackbits(packed, axis=-1, count=cohort.slices.shape[-1])
    for channel, pixels in enumerate(cohort.pixels([row])[0]):  # each [size, size] in [-1, 1]
        tile = grey_tile(pixels, TILE)
        tile = tile if mask is None else draw_outline(tile, mask)
        tile = mark_sides(tile) if cohort.oriented(row) else tile
        image.paste(tile, (GAP + channel * (TILE + GAP), CAPTION))
    return image
