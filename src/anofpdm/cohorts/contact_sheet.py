"""Contact sheet of a prepared cohort: the network's input, to be checked before training."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import MASKS
from anofpdm.labels import LABEL_NAMES, UNHEALTHY
from anofpdm.util.drawing import BACKGROUND, FOREGROUND, MUTED, draw_outline, encode_png, font, grey_tile, mark_sides
from anofpdm.util.files import write_atomically

TILE, GAP, CAPTION, HEADING = 144, 6, 32, 50
TILES_PER_ROW, MAX_ROWS = 8, 6


def draw_contact_sheet(cohort: Cohort, path: Path) -> None:
    """Slices of scans spread over the cohort, in every modality; lesions are outlined where there are masks."""
    across = max(1, TILES_PER_ROW // len(cohort.modalities))
    rows = choose_rows(cohort, across * MAX_ROWS)
    block = (len(cohort.modalities) * (TILE + GAP) + GAP, TILE + CAPTION + GAP)
    size = (across * block[0] + GAP, HEADING + -(-len(rows) // across) * block[1] + GAP)
    sheet = Image.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    pen.text((2 * GAP, 8), _heading(cohort), FOREGROUND, font(13))
    order = ", from left to right in each group" if len(cohort.modalities) > 1 else ""
    pen.text((2 * GAP, 26), f"{', '.join(cohort.modalities)}{order}", MUTED, font(11))
    for number, row in enumerate(rows):
        left, top = GAP + number % across * block[0], HEADING + number // across * block[1]
        details = f"slice {cohort.indices[row] + 1}, {LABEL_NAMES[cohort.labels[row]]}, {cohort.splits[row]}"
        for line, text in enumerate((str(cohort.scans[row]), details)):
            pen.text((left + GAP, top + 14 * line), _shorten(text, block[0] - 2 * GAP), MUTED, font(11))
        for channel, tile in enumerate(_tiles(cohort, row)):
            tile = mark_sides(tile) if cohort.oriented(row) else tile
            sheet.paste(tile, (left + GAP + channel * (TILE + GAP), top + CAPTION))
    write_atomically(path, encode_png(sheet))


def choose_rows(cohort: Cohort, limit: int) -> list[int]:
    """Up to `limit` slices from as many scans as possible; two unhealthy ones per healthy one, if possible."""
    scans = np.unique(cohort.scans)
    picked = scans[np.unique(np.linspace(0, len(scans) - 1, min(limit, len(scans))).astype(int))]
    each = max(1, limit // len(picked))
    return [row for number, scan in enumerate(picked) for row in _slices_of(cohort, str(scan), each, number)]


def _slices_of(cohort: Cohort, scan: str, count: int, number: int) -> list[int]:
    """From the middle half of the scan: `count` slices spread over it, or the middle one with the wanted label."""
    rows = np.flatnonzero(cohort.scans == scan)
    inner = rows[len(rows) // 4 : max(len(rows) - len(rows) // 4, 1)]
    if count > 1:
        return [int(row) for row in inner[np.unique(np.linspace(0, len(inner) - 1, count).astype(int))]]
    unhealthy = cohort.labels[inner] == UNHEALTHY
    wanted = unhealthy if number % 3 < 2 else ~unhealthy
    among = inner[wanted] if wanted.any() else inner
    return [int(among[len(among) // 2])]


def _tiles(cohort: Cohort, row: int) -> list[Image.Image]:
    tiles = [grey_tile(channel, TILE) for channel in cohort.pixels([row])[0]]  # each [size, size] in [-1, 1]
    path = cohort.path / MASKS
    if not path.is_file():
        return tiles
    mask = np.unpackbits(np.load(path, mmap_mode="r")[row], axis=-1, count=cohort.slices.shape[-1])
    return [draw_outline(tile, mask) for tile in tiles]


def _heading(cohort: Cohort) -> str:
    labels, counts = np.unique(cohort.labels, return_counts=True)
    slices = ", ".join(f"{count:,} {LABEL_NAMES[label]}" for label, count in zip(labels, counts, strict=True))
    patients = len(np.unique(cohort.patients))
    return (
        f"{cohort.manifest.kind}: {patients:,} patients, {len(cohort):,} slices ({slices}), "
        f"preparation {cohort.manifest.preparation_sha256[:12]}"
    )


def _shorten(text: str, width: int) -> str:
    """Cut in the middle, where names differ least."""
    face, kept = font(11), text
    while face.getlength(kept) > width and len(kept) > 4:
        middle = len(kept) // 2
        kept = f"{kept[: middle - 2]}…{kept[middle + 2 :]}"
    return kept
