"""Edges of pseudo-labels, moved to where the image has them.

A teacher's map is smooth: its threshold crosses the lesion's edge within a few pixels of the true one. In the image the
edge is sharper. For lesions large enough to measure both sides, it is where intensities are half way between those of
the lesion and those of the tissue around it.
"""

import numpy as np
from scipy import ndimage
from scipy.special import expit

from anofpdm.method.mask import AT_SIDE, smallest_pixels
from anofpdm.student.student_network import BACKGROUND, Pixels
from anofpdm.util.workers import map_in_threads

# Pixels, for a side of 128:
LARGE = 200  # area of a lesion whose edge is moved
BAND = 3  # how far an edge moves
RING = 8  # how far from the lesion normal tissue is measured

MIN_PIXELS = 20  # on either side, for a median
MIN_CONTRAST = 0.1  # between lesion and normal tissue, summed over modalities; intensities span 2
SOFTNESS = 0.15  # of the way from normal tissue to lesion, over which the probability rises


def move_edges(masks: np.ndarray, pixels: Pixels) -> np.ndarray:
    """uint8 [N, H, W] pseudo-labels (probability of lesion times 255) of the slices of `pixels` -> the same, with the
    edges of large lesions moved."""
    moved = masks.copy()
    rows = np.flatnonzero((masks > 127).sum((1, 2)) >= smallest_pixels(masks.shape[1:], LARGE))
    edges = map_in_threads(lambda row: move_edge(masks[row], pixels(np.array([row]))[0]), rows)
    for row, mask in zip(rows, edges, strict=True):
        moved[row] = mask
    return moved


def move_edge(mask: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Of one slice: uint8 [H, W] and [C, H, W] in [-1, 1] -> uint8 [H, W]."""
    brain = np.asarray((image > BACKGROUND).any(axis=0))
    components, _ = ndimage.label(mask > 127, np.ones((3, 3)))
    large, scale = smallest_pixels(mask.shape, LARGE), mask.shape[0] / AT_SIDE
    band, ring = (max(1, round(scale * distance)) for distance in (BAND, RING))
    moved = mask.copy()
    for number, box in enumerate(ndimage.find_objects(components), 1):
        if np.count_nonzero(components[box] == number) < large:
            continue
        around = tuple(slice(max(0, side.start - ring - 1), side.stop + ring + 1) for side in box)
        lesion = components[around] == number
        tissue = brain[around] & (components[around] == 0)
        outside, inside = (ndimage.distance_transform_edt(part) for part in (~lesion, lesion))
        core = inside > band
        probability = _probability(image[:, *around], tissue & (outside > band) & (outside <= ring), core)
        if probability is not None:
            near = tissue & (outside <= band) | lesion & ~core
            moved[around] = np.where(near, np.round(255 * probability), moved[around])
    return moved


def _probability(image: np.ndarray, normal: np.ndarray, core: np.ndarray) -> np.ndarray | None:
    """[H, W], of lesion by the intensities of the image [C, H, W]; `normal` tissue and the `core` of the lesion, bool
    [H, W], are its samples. None where they are too small, or do not differ."""
    if min(normal.sum(), core.sum()) < MIN_PIXELS:
        return None
    low, high = (np.median(image[:, where], axis=1) for where in (normal, core))  # [C]
    contrast = np.abs(high - low).sum()
    if contrast < MIN_CONTRAST:
        return None
    # 0 in normal tissue, 1 in the lesion; modalities count by their contrast
    way = np.tensordot(np.sign(high - low), image - low[:, None, None], axes=1) / contrast
    return expit((ndimage.gaussian_filter(way, 0.5) - 0.5) / SOFTNESS)
