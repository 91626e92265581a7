"""One picture of a prepared cohort: what the network will see, to be looked at before hours of training."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import MASKS
from anofpdm.files import write_atomically
from anofpdm.labels import UNHEALTHY, WORDS

TILE, GAP, CAPTION, HEADING = 144, 6, 32, 50
TILES_A_ROW, MOST_ROWS = 8, 6
INK, QUIET, PAPER, OUTLINE = (235, 235, 235), (150, 150, 150), (16, 16, 18), (255, 84, 64)


def draw_contact_sheet(cohort: Cohort, path: Path) -> None:
    """Scans spread over the cohort, every modality of one slice each; lesions outlined where masks are at hand."""
    across = max(1, TILES_A_ROW // len(cohort.modalities))
    rows = chosen_rows(cohort, across * MOST_ROWS)
    block = (len(cohort.modalities) * (TILE + GAP) + GAP, TILE + CAPTION + GAP)
    size = (across * block[0] + GAP, HEADING + -(-len(rows) // across) * block[1] + GAP)
    sheet = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((2 * GAP, 8), _heading(cohort), INK, _font(13))
    order = " from left to right in each group" if len(cohort.modalities) > 1 else ""
    pen.text((2 * GAP, 26), f"{', '.join(cohort.modalities)}{order}", QUIET, _font(11))
    for number, row in enumerate(rows):
        left, top = GAP + number % across * block[0], HEADING + number // across * block[1]
        for line, words in enumerate(_caption(cohort, row)):
            pen.text((left + GAP, top + 14 * line), _fitted(words, block[0] - 2 * GAP), QUIET, _font(11))
        for channel, tile in enumerate(_tiles(cohort, row)):
            sheet.paste(tile, (left + GAP + channel * (TILE + GAP), top + CAPTION))
    write_atomically(path, _png(sheet))


def chosen_rows(cohort: Cohort, most: int) -> list[int]:
    """Up to `most` slices, from as many scans as possible; two unhealthy ones, then a healthy one, where there are."""
    scans = np.unique(cohort.scans)
    picked = scans[np.unique(np.linspace(0, len(scans) - 1, min(most, len(scans))).astype(int))]
    each = max(1, most // len(picked))
    return [row for turn, scan in enumerate(picked) for row in _slices_of(cohort, str(scan), each, turn)]


def _slices_of(cohort: Cohort, scan: str, count: int, turn: int) -> list[int]:
    """From the half of the scan with the most brain: spread over it, or the middle one of the kind whose turn it is."""
    rows = np.flatnonzero(cohort.scans == scan)
    inner = rows[len(rows) // 4 : max(len(rows) - len(rows) // 4, 1)]
    if count > 1:
        return [int(row) for row in inner[np.unique(np.linspace(0, len(inner) - 1, count).astype(int))]]
    unhealthy = cohort.labels[inner] == UNHEALTHY
    wanted = unhealthy if turn % 3 < 2 else ~unhealthy
    among = inner[wanted] if wanted.any() else inner
    return [int(among[len(among) // 2])]


def _tiles(cohort: Cohort, row: int) -> list[Image.Image]:
    outline = _outline(cohort, row)
    tiles = []
    for channel in cohort.pixels([row])[0]:  # each [size, size] in [-1, 1]
        grey = Image.fromarray(np.round((channel + 1) * 127.5).astype(np.uint8))
        tile = np.array(grey.resize((TILE, TILE), Image.Resampling.BICUBIC).convert("RGB"))
        if outline is not None:
            tile[outline] = OUTLINE
        tiles.append(Image.fromarray(tile))
    return tiles


def _outline(cohort: Cohort, row: int) -> np.ndarray | None:
    """bool [TILE, TILE]: the pixels just outside the lesion."""
    path = cohort.path / MASKS
    if not path.is_file():
        return None
    size = cohort.slices.shape[-1]
    mask = np.unpackbits(np.load(path, mmap_mode="r")[row], axis=-1, count=size)
    large = np.array(Image.fromarray(mask * 255).resize((TILE, TILE), Image.Resampling.BILINEAR)) >= 128
    around: np.ndarray = ndimage.binary_dilation(large) & ~large
    return around


def _heading(cohort: Cohort) -> str:
    counts = [
        f"{(cohort.labels == label).sum():,} {word}" for label, word in enumerate(WORDS) if label in cohort.labels
    ]
    patients = len(np.unique(cohort.patients))
    return (
        f"{cohort.manifest['kind']}: {patients:,} patients, {len(cohort):,} slices ({', '.join(counts)}), "
        f"prepared as {cohort.manifest['preparation_sha256'][:12]}"
    )


def _caption(cohort: Cohort, row: int) -> tuple[str, str]:
    return str(cohort.scans[row]), f"slice {cohort.indices[row]}, {WORDS[cohort.labels[row]]}, {cohort.splits[row]}"


def _fitted(words: str, width: int) -> str:
    """Cut in the middle, where names differ least."""
    font, kept = _font(11), words
    while font.getlength(kept) > width and len(kept) > 4:
        middle = len(kept) // 2
        kept = f"{kept[: middle - 2]}…{kept[middle + 2 :]}"
    return kept


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
