"""Contact sheet of a prepared cohort: the network's input, to be checked before training."""

from pathlib import Path

import numpy as np
from PIL import Image

from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import MASKS
from anofpdm.labels import LABEL_NAMES, UNHEALTHY
from anofpdm.util import drawing
from anofpdm.util.files import write_atomically

TILE, TILES_PER_ROW, MAX_ROWS = 144, 8, 6


def draw_contact_sheet(cohort: Cohort, path: Path) -> None:
    """Slices of scans spread over the cohort, in every modality; lesions are outlined where there are masks."""
    across = max(1, TILES_PER_ROW // len(cohort.modalities))
    slices = [_draw_slice(cohort, row) for row in choose_rows(cohort, across * MAX_ROWS)]
    rows = [slices[first : first + across] for first in range(0, len(slices), across)]
    title = f"{cohort.manifest.kind}, {len(cohort):,} slices of {', '.join(cohort.modalities)}"
    write_atomically(path, drawing.draw_sheet(rows, title))


def choose_rows(cohort: Cohort, limit: int) -> list[int]:
    """Up to `limit` slices from as many scans as possible; the unhealthy slices of a scan if there are any."""
    scans, chosen = drawing.space_evenly(np.unique(cohort.scans), limit), list[int]()
    for scan in scans:
        rows = np.flatnonzero(cohort.scans == scan)
        chosen += rows[drawing.choose_slices(cohort.labels[rows] == UNHEALTHY, limit // len(scans))].tolist()
    return chosen


def _draw_slice(cohort: Cohort, row: int) -> Image.Image:
    """The modalities side by side, below a caption."""
    outlines = {}
    if (cohort.path / MASKS).is_file():
        packed = np.load(cohort.path / MASKS, mmap_mode="r")[row]
        outlines[drawing.OUTLINE] = np.unpackbits(packed, axis=-1, count=cohort.slices.shape[-1])
    sides = "RL" if cohort.oriented(row) else ""
    tiles = [drawing.grey_tile(pixels, TILE) for pixels in cohort.pixels([row])[0]]  # each [size, size] in [-1, 1]
    details = f"slice {cohort.indices[row] + 1}, {LABEL_NAMES[cohort.labels[row]]}, {cohort.splits[row]}"
    image = drawing.arrange([[drawing.annotate(tile, outlines, sides) for tile in tiles]])
    return drawing.captioned(image, f"{cohort.scans[row]}\n{details}")
