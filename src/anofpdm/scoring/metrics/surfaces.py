"""Surfaces of 3D masks and the distances between them, as the package surface-distance (and so BraTS) defines them.

Each cell of 2 x 2 x 2 voxels that contains both mask and background is one surface element, at the corner that its
voxels share. Its area is that of the marching-cubes surface in the cell. Beyond the image there is background.
"""

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.spatial import KDTree

from anofpdm.scoring.metrics.components import pack_bits

Spacing = tuple[float, float, float]  # voxel size along each array axis, mm

NEAR = 4.0  # distances up to this many voxel edges are looked up, larger ones found with a tree
SLACK_MM = 1e-3  # of tolerances: voxel sizes in a header are rounded


@dataclass(frozen=True)
class Surface:
    cells: np.ndarray  # [n, 3], integer; cell c has the voxels c and c + 1 along each axis
    areas: np.ndarray  # [n], mm2
    voxels: np.ndarray  # [n], flat index of one voxel of the mask in each cell


def find_surface(mask: np.ndarray, spacing: Spacing) -> Surface:
    """bool [i, j, k], with background at each side of the array, and a last axis that is a multiple of 8."""
    bits, line, plane = pack_bits(mask)
    after = bits >> 1
    after[:-1] |= bits[1:] << 7
    some, every = bits | after, bits & after  # of the voxels of a cell, by its first voxel
    for step in (line, plane):
        some, every = some[:-step] | some[step:], every[:-step] & every[step:]
    mixed = some & ~every
    spots = np.flatnonzero(mixed)
    spot, bit = np.nonzero(np.unpackbits(mixed[spots, None], axis=1, bitorder="little"))
    cells = 8 * spots[spot] + bit
    flat, (_, rows, columns) = mask.reshape(-1).view(np.uint8), mask.shape
    steps = np.array([(i * rows + j) * columns + k for i, j, k in itertools.product((0, 1), repeat=3)])
    codes = np.zeros(len(cells), dtype=np.uint8)
    for corner, step in enumerate(steps):
        codes |= flat[cells + step] << corner
    lowest = np.array([(code & -code).bit_length() - 1 for code in range(256)])  # bit that is set; -1 in 0
    places = np.array(np.unravel_index(cells, mask.shape)).T  # [n, 3], each column contiguous
    return Surface(places, element_areas(spacing)[codes], cells + steps[lowest[codes]])


@dataclass(frozen=True)
class Distances:
    """From each element of one surface to the nearest element of another."""

    mm: np.ndarray  # [n]
    nearest: np.ndarray  # [n], row of that element
    areas: np.ndarray  # [n], mm2, of the elements of the first surface

    def percentile_95(self) -> float:
        """Weighted by area."""
        order = np.argsort(self.mm)
        share = np.cumsum(self.areas[order]) / self.areas.sum()
        place = min(int(np.searchsorted(share, 0.95)), len(order) - 1)
        return float(self.mm[order[place]])


def measure_distances(surface: Surface, other: Surface, spacing: Spacing) -> Distances:
    """Neither surface may be empty."""
    return Distances(*find_nearest(surface.cells, other.cells, spacing), surface.areas)


def hausdorff(there: Distances, back: Distances) -> float:
    """The larger of the 95th percentiles of both directions."""
    return max(there.percentile_95(), back.percentile_95())


def mean_distance(there: Distances, back: Distances) -> float:
    """Over both surfaces, weighted by area."""
    return float((there.mm @ there.areas + back.mm @ back.areas) / (there.areas.sum() + back.areas.sum()))


def surface_dice(there: Distances, back: Distances, tolerance_mm: float) -> float:
    """Share of the area of both surfaces that is within the tolerance of the other."""
    within = sum(way.areas[way.mm <= tolerance_mm + SLACK_MM].sum() for way in (there, back))
    return float(within / (there.areas.sum() + back.areas.sum()))


def find_nearest(points: np.ndarray, others: np.ndarray, spacing: Spacing) -> tuple[np.ndarray, np.ndarray]:
    """Integer [n, 3] and [m, 3] -> distance in mm to the nearest of the others and its row, [n] each."""
    shells = _shells(spacing)
    margin = int(max(offsets.max() for _, offsets in shells))
    low = np.minimum(points.min(axis=0), others.min(axis=0)) - margin
    shape = np.maximum(points.max(axis=0), others.max(axis=0)) + margin + 1 - low
    strides = np.array([shape[1] * shape[2], shape[2], 1])
    rows = np.zeros(np.prod(shape), dtype=np.int32)  # 0: nothing there
    rows[(others - low) @ strides] = np.arange(1, len(others) + 1)
    places, left = (points - low) @ strides, np.arange(len(points))
    distances, nearest = np.full(len(points), np.nan), np.zeros(len(points), dtype=np.int32)
    for distance, offsets in shells:  # nearest first
        there = rows[places[left] + (offsets @ strides)[:, None]].max(axis=0)  # [left]
        hit = there > 0
        distances[left[hit]], nearest[left[hit]] = distance, there[hit] - 1
        left = left[~hit]
        if distance >= 2 * min(spacing) and hit.sum() <= 0.01 * len(hit):  # the rest is far apart
            break
    if len(left):
        tree = KDTree(others * spacing, leafsize=32, compact_nodes=False, balanced_tree=False)  # quick to build
        nearest[left] = tree.query(points[left] * spacing)[1]
        distances[left] = np.linalg.norm((points[left] - others[nearest[left]]) * spacing, axis=1)
    return distances, nearest


@functools.cache
def _shells(spacing: Spacing) -> list[tuple[float, np.ndarray]]:
    """Offsets [m, 3] of equal distance in mm, by growing distance, up to NEAR voxel edges."""
    reach = NEAR * min(spacing)
    axes = [range(-int(reach / edge + 1e-9), int(reach / edge + 1e-9) + 1) for edge in spacing]
    offsets = np.array(list(itertools.product(*axes)))
    distances = np.linalg.norm(offsets * spacing, axis=1)
    levels, first, group = np.unique(np.round(distances, 9), return_index=True, return_inverse=True)
    return [(float(distances[first[n]]), offsets[group == n]) for n in range(len(levels)) if levels[n] <= reach]


# ---- areas of surface elements ---------------------------------------------------------------------------------------


@functools.cache
def element_areas(spacing: Spacing) -> np.ndarray:
    """[256], mm2, by the code of a cell."""
    faces = np.prod(spacing) / np.array(spacing)  # area of a voxel's face across each axis
    return np.linalg.norm(element_triangles() * faces, axis=-1).sum(axis=-1)


@functools.cache
def element_triangles() -> np.ndarray:
    """[256, 4, 3]: area vectors of the marching-cubes triangles in a cell of cubes of edge 1, padded with zeros.

    Corners that only touch diagonally are separate, for whichever of mask and background has fewer corners. A polygon
    is divided into triangles from the corner that gives the largest area.
    """
    table = np.zeros((256, 4, 3))
    for code in range(1, 255):
        if code.bit_count() <= 4:
            bits = np.unpackbits(np.array([code], dtype=np.uint8), bitorder="little")
            parts, count = ndimage.label(bits.reshape(2, 2, 2))
            triangles = np.concatenate([_triangles((parts == number + 1).tobytes()) for number in range(count)])
            table[code, : len(triangles)] = triangles
    many = [code for code in range(256) if code.bit_count() > 4]
    table[many] = table[[255 - code for code in many]]
    return table


def _polygon(part: np.ndarray) -> np.ndarray:
    """Around corners of a cell that are connected by its edges, bool [2, 2, 2] -> vertices [n, 3] in cyclic order.

    The vertices are the middles of the edges between these corners and the others. Seen along the direction from the
    corners to the vertices, their order is that of their angles.
    """
    cut_edges = []
    for axis in range(3):
        middles = np.argwhere(np.diff(part, axis=axis)).astype(float)
        middles[:, axis] = 0.5
        cut_edges.append(middles)
    vertices = np.concatenate(cut_edges)
    centre = vertices.mean(axis=0)
    _, _, axes = np.linalg.svd([centre - np.argwhere(part).mean(axis=0)])
    _, x, y = axes @ (vertices - centre).T
    return vertices[np.argsort(np.arctan2(y, x))]


@functools.cache  # most parts occur in several cells
def _triangles(part: bytes) -> np.ndarray:
    """Area vectors [n - 2, 3] of the polygon of n vertices around a part, bool [2, 2, 2]."""
    polygon = _polygon(np.frombuffer(part, dtype=bool).reshape(2, 2, 2))
    turned = np.stack([np.roll(polygon, -start, axis=0) for start in range(len(polygon))])  # [start, n, 3]
    spokes = turned[:, 1:] - turned[:, :1]
    fans = np.cross(spokes[:, :-1], spokes[:, 1:]) / 2
    return fans[np.linalg.norm(fans, axis=2).sum(axis=1).argmax()]
