"""Pictures of a study by which a wrong registration or brain mask is recognised: planes through the reference, with
the edges of the reference and the outline of the brain drawn on every series."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import nibabel as nib
import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from anofpdm.raw.geometry import apply, resample
from anofpdm.raw.register import Head
from anofpdm.scans.grid import Grid
from anofpdm.util import drawing

SIDE, PIXEL_MM = 192, 1.25  # of a plane
AXIAL_SHARES = (0.2, 0.4, 0.6, 0.8)  # of the slices with brain, from the inferior end
EDGE_SIGMA = 1.6  # pixels
EDGE_PERCENTILE = 85  # of the gradients in the brain, and outside of it; weaker edges are not drawn
CROSS = ndimage.generate_binary_structure(2, 1)[None]  # a pixel and its neighbours in the plane
GAP, HEADING = 6, 26
BRAIN_COLOUR, EDGE_COLOUR, OTHER_BRAIN_COLOUR = (80, 180, 255), drawing.ORANGE, (255, 60, 60)

Images = np.ndarray  # float32 [planes, SIDE, SIDE]
Masks = np.ndarray  # bool, the same shape


def choose_planes(reference: Head) -> list[Grid]:
    """Four axial planes on slices of the reference, a coronal and a sagittal one through the centre of its brain.
    Each is a grid [column, row, 1], seen as radiologists do: the patient's right on the left, up is up."""
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


def cut_planes(voxels: np.ndarray, grid: Grid, planes: Sequence[Grid], matrix: np.ndarray) -> Images:
    """Values of a series on planes of the reference; `matrix` is its registration."""
    return np.stack([resample(voxels, grid, plane, matrix)[:, :, 0].T for plane in planes])


def draw_study(images: Mapping[str, Images], brain: Masks) -> dict[str, bytes]:
    """PNG of each series, with the outline of the brain and, on the others, the edges of the first, the reference."""
    first, *_ = images
    edges = f"registered. Orange: edges of {first}. Blue: brain mask"
    return {
        name: draw_series(f"{name}: reference. Blue: brain mask", image, brain)
        if name == first
        else draw_series(f"{name}, {edges}", image, brain, images[first])
        for name, image in images.items()
    }


def draw_series(
    title: str, images: Images, brain: Masks, edges_of: Images | None = None, other_brain: Masks | None = None
) -> bytes:
    """PNG: the planes of a series, with the outline of the brain and the edges of another series."""
    dark, bright = np.percentile(images, [1, 99.5])
    shades = 2 * (images - dark) / max(float(bright - dark), 1e-6) - 1
    edges = np.zeros(images.shape, bool) if edges_of is None else find_edges(edges_of, brain)
    sheet = Image.new("RGB", (GAP + len(images) * (SIDE + GAP), HEADING + SIDE + GAP), drawing.BACKGROUND)
    ImageDraw.Draw(sheet).text((GAP, 6), title, drawing.FOREGROUND, drawing.font(12))
    for number, (shade, edge, inside) in enumerate(zip(shades, edges, brain, strict=True)):
        pixels = np.array(drawing.grey_tile(shade, SIDE))
        pixels[edge] = EDGE_COLOUR
        tile = drawing.draw_outline(Image.fromarray(pixels), inside, BRAIN_COLOUR)
        if other_brain is not None:
            tile = drawing.draw_outline(tile, other_brain[number], OTHER_BRAIN_COLOUR)
        tile = drawing.mark_sides(tile, *(("R", "L") if number < len(images) - 1 else ("A", "P")))
        sheet.paste(tile, (GAP + number * (SIDE + GAP), HEADING))
    return drawing.encode_png(sheet)


def draw_brain(title: str, head: Head) -> bytes:
    """One series and its brain, which may be empty."""
    planes = choose_planes(head if head.brain.any() else replace(head, brain=np.ones_like(head.brain)))
    return draw_series(title, *_cut_head(head, planes, np.eye(4)))


def draw_registration(title: str, reference: Head, series: Head, matrix: np.ndarray) -> bytes:
    """A series at the position that registration found, with the edges of the reference and both brains."""
    planes = choose_planes(reference)
    edges_of, brain = _cut_head(reference, planes, np.eye(4))
    images, other_brain = _cut_head(series, planes, matrix)
    return draw_series(title, images, brain, edges_of, other_brain)


def _cut_head(head: Head, planes: Sequence[Grid], matrix: np.ndarray) -> tuple[Images, Masks]:
    return cut_planes(head.voxels, head.grid, planes, matrix), cut_planes(head.brain, head.grid, planes, matrix) >= 0.5


def find_edges(images: Images, brain: Masks) -> Masks:
    """Zero crossings of the Laplacian where the image changes most."""
    slope = np.stack([ndimage.gaussian_gradient_magnitude(image, EDGE_SIGMA) for image in images])
    positive = np.stack([ndimage.gaussian_laplace(image, EDGE_SIGMA) for image in images]) > 0
    head = ndimage.binary_dilation(images > 0.1 * np.percentile(images, 99), np.ones((1, 5, 5)))  # with its border
    strong = np.zeros(images.shape, bool)
    for region in (head & brain, head & ~brain):
        if region.any():
            strong |= region & (slope >= np.percentile(slope[region], EDGE_PERCENTILE))
    return np.asarray(strong & positive & ~ndimage.binary_erosion(positive, CROSS))


def _plane(centre: np.ndarray, across: np.ndarray, down: np.ndarray) -> Grid:
    affine = np.eye(4)
    affine[:3, :3] = PIXEL_MM * np.stack([across, down, np.cross(across, down)], axis=1)
    affine[:3, 3] = centre - affine[:3, :2].sum(axis=1) * (SIDE - 1) / 2
    return Grid.from_affine((SIDE, SIDE, 1), affine)
