"""Pictures of a study by which a wrong registration or brain mask is recognised: planes through the reference, with
the edges of the reference and the outline of the brain drawn on every series."""

from collections.abc import Sequence
from dataclasses import replace

import nibabel as nib
import numpy as np
from PIL import Image
from scipy import ndimage

from anofpdm.raw.geometry import apply, resample
from anofpdm.raw.register import Head
from anofpdm.scans.grid import Grid
from anofpdm.util import drawing

SIDE, PIXEL_MM = 192, 1.25  # of a plane
AXIAL_SHARES = (0.2, 0.4, 0.6, 0.8)  # of the slices with brain, from the inferior end
SIDES = ("RL", "RL", "RL", "RL", "RL", "AP")  # letters at the left and right edge of each plane
EDGE_SIGMA = 1.6  # pixels
EDGE_PERCENTILE = 85  # of the gradients in the brain, and outside of it; weaker edges are not drawn
BRAIN_COLOUR, EDGE_COLOUR, OTHER_BRAIN_COLOUR = (80, 180, 255), drawing.ORANGE, (255, 60, 60)
UNMOVED = np.eye(4)


def choose_planes(reference: Head) -> list[Grid]:
    """Four axial planes on slices of the reference, a coronal and a sagittal one through the centre of its brain, or of
    the image if no brain was found. Each is a grid [column, row, 1], seen as radiologists do: the patient's right on
    the left, up is up."""
    if not reference.brain.any():
        reference = replace(reference, brain=np.ones_like(reference.brain))
    grid, axial = reference.grid, reference.grid.axial_axis
    axes, signs = nib.io_orientation(grid.affine).T
    directions = (grid.affine[:3, :3] / grid.spacing_mm * signs).T  # along the array axes
    right, anterior, superior = directions[np.argsort(axes)]
    inside = np.flatnonzero(np.moveaxis(reference.brain, axial, 0).any(axis=(1, 2)))
    centre = reference.centre_mm
    index = apply(np.linalg.inv(grid.affine), centre)
    planes = []
    for share in AXIAL_SHARES:
        index[axial] = inside[round(share * (len(inside) - 1))]
        planes.append(_plane(apply(grid.affine, index), -right, -anterior))
    planes.sort(key=lambda plane: float(plane.affine[:3, 3] @ superior))
    return [*planes, _plane(centre, -right, -superior), _plane(centre, -anterior, -superior)]


def cut_planes(head: Head, planes: Sequence[Grid], matrix: np.ndarray = UNMOVED) -> tuple[np.ndarray, np.ndarray]:
    """[planes, SIDE, SIDE], of a series and of its brain (bool), on planes of the reference; `matrix` is its
    registration."""

    def cut(values: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(values, dtype=np.float32)
        return np.stack([resample(source, head.grid, plane, matrix)[:, :, 0].T for plane in planes])

    return cut(head.voxels), cut(head.brain) >= 0.5


def draw_series(title: str, series: Head, reference: Head | None = None, matrix: np.ndarray = UNMOVED) -> bytes:
    """PNG: the planes of a series, with the outline of its brain, which may be empty. With a reference, the series is
    drawn at the position that registration found, with the edges of the reference and the outlines of both brains."""
    planes = choose_planes(reference or series)
    images, brain = cut_planes(series, planes, matrix)
    edges_of, reference_brain = cut_planes(reference, planes) if reference else (images, brain)
    dark, bright = np.percentile(images, [1, 99.5])
    shades = 2 * (images - dark) / max(float(bright - dark), 1e-6) - 1
    tiles = []
    for number, sides in enumerate(SIDES):
        tile, outlines = drawing.grey_tile(shades[number], SIDE), {BRAIN_COLOUR: reference_brain[number]}
        if reference is not None:
            edges = find_edges(edges_of[number], reference_brain[number])
            tile.paste(EDGE_COLOUR, mask=Image.fromarray(edges))
            outlines[OTHER_BRAIN_COLOUR] = brain[number]
        tiles.append(drawing.annotate(tile, outlines, sides))
    return drawing.draw_sheet([tiles], title)


def find_edges(image: np.ndarray, brain: np.ndarray) -> np.ndarray:
    """bool [SIDE, SIDE]: zero crossings of the Laplacian where the image changes most."""
    slope = ndimage.gaussian_gradient_magnitude(image, EDGE_SIGMA)
    bright_side = ndimage.gaussian_laplace(image, EDGE_SIGMA) < 0
    head = ndimage.binary_dilation(image > 0.1 * np.percentile(image, 99), np.ones((5, 5)))  # with its border
    strong = np.zeros(image.shape, bool)
    for region in (head & brain, head & ~brain):
        if region.any():
            strong |= region & (slope >= np.percentile(slope[region], EDGE_PERCENTILE))
    return np.asarray(strong & bright_side & ndimage.binary_dilation(~bright_side))


def _plane(centre: np.ndarray, across: np.ndarray, down: np.ndarray) -> Grid:
    affine = np.eye(4)
    affine[:3, :3] = PIXEL_MM * np.stack([across, down, np.cross(across, down)], axis=1)
    affine[:3, 3] = centre - affine[:3, :2].sum(axis=1) * (SIDE - 1) / 2
    return Grid.from_affine((SIDE, SIDE, 1), affine)
