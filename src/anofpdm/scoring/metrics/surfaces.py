"""Surfaces of 3D masks and the distances between them, as the package surface-distance (and so BraTS) defines them.

Each cell of 2 x 2 x 2 voxels that contains both mask and background is one surface element, at the corner that its
voxels share. Its area is that of the marching-cubes surface in the cell. Beyond the image there is background.
"""

import functools
from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from scipy.spatial import KDTree

Spacing = tuple[float, float, float]  # voxel size along each array axis, mm
Labels = int | np.ndarray

SLACK_MM = 1e-3  # of tolerances: voxel sizes in a header are rounded


@dataclass(frozen=True)
class Surface:
    points: np.ndarray  # [n, 3], mm, of cells; cell c has the voxels c and c + 1 along each axis
    areas: np.ndarray  # [n], mm2
    labels: np.ndarray  # [n], of the part of the mask in each cell

    def take(self, chosen: np.ndarray) -> "Surface":
        return Surface(self.points[chosen], self.areas[chosen], self.labels[chosen])


def find_surface(labels: np.ndarray, spacing: Spacing) -> Surface:
    """Parts of a mask [i, j, k] that do not touch, with background (0) at each side of the array."""
    some = every = labels > 0  # of the voxels of each cell
    for axis in range(3):
        (some, after), (every, every_after) = neighbours(some, axis), neighbours(every, axis)
        some, every = some | after, every & every_after
    cells = np.argwhere(some & ~every)
    voxels = np.stack([labels[tuple((cells + corner).T)] for corner in np.ndindex(2, 2, 2)])  # [8, n]
    codes = np.packbits(voxels > 0, axis=0, bitorder="little")[0]
    return Surface(cells * spacing, element_areas(spacing)[codes], voxels.max(axis=0))


def neighbours(array: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Views without the last plane across an axis, and without the first."""
    planes = np.moveaxis(array, axis, 0)
    return np.moveaxis(planes[:-1], 0, axis), np.moveaxis(planes[1:], 0, axis)


@dataclass(frozen=True)
class Distances:
    """From each element of one surface to the nearest element of the other, and back."""

    surfaces: tuple[Surface, Surface]
    mm: tuple[np.ndarray, np.ndarray]
    nearest: tuple[np.ndarray, np.ndarray]  # labels of the parts to which the nearest elements belong

    @property
    def areas(self) -> tuple[np.ndarray, np.ndarray]:
        return self.surfaces[0].areas, self.surfaces[1].areas

    @property
    def total_area(self) -> float:
        return float(self.areas[0].sum() + self.areas[1].sum())

    def of_parts(self, labels: Labels, other_labels: Labels) -> "Distances":
        """Between these parts of the two surfaces."""
        here, there = np.isin(self.surfaces[0].labels, labels), np.isin(self.surfaces[1].labels, other_labels)
        parts = self.surfaces[0].take(here), self.surfaces[1].take(there)
        nearest = self.nearest[0][here], self.nearest[1][there]
        if np.isin(nearest[0], other_labels).all() and np.isin(nearest[1], labels).all():
            return Distances(parts, (self.mm[0][here], self.mm[1][there]), nearest)
        return measure_distances(*parts)  # other parts are nearer

    def hd95(self) -> float:
        """The larger of the 95th percentiles of both directions."""
        return max(map(_percentile_95, self.mm, self.areas))

    def mean(self) -> float:
        """Weighted by area."""
        return float(sum(map(np.dot, self.mm, self.areas)) / self.total_area)

    def dice(self, tolerance_mm: float) -> float:
        """Share of the area of both surfaces that is within the tolerance of the other."""
        within = [areas[mm <= tolerance_mm + SLACK_MM].sum() for mm, areas in zip(self.mm, self.areas, strict=True)]
        return float(sum(within) / self.total_area)


def _percentile_95(mm: np.ndarray, areas: np.ndarray) -> float:
    """Weighted by area."""
    order = np.argsort(mm)
    share = np.cumsum(areas[order]) / areas.sum()
    place = min(int(np.searchsorted(share, 0.95)), len(order) - 1)
    return float(mm[order[place]])


def measure_distances(surface: Surface, other: Surface) -> Distances:
    """Neither surface may be empty."""
    (there, other_rows), (back, rows) = _find_nearest(surface, other), _find_nearest(other, surface)
    return Distances((surface, other), (there, back), (other.labels[other_rows], surface.labels[rows]))


def _find_nearest(surface: Surface, other: Surface) -> tuple[np.ndarray, np.ndarray]:
    """Distance from each element to the nearest of the other surface, and its row."""
    tree = KDTree(other.points, leafsize=32, compact_nodes=False, balanced_tree=False)  # quick to build
    distances, rows = tree.query(surface.points)
    return distances, rows


# ---- areas of surface elements ---------------------------------------------------------------------------------------


@functools.cache
def element_areas(spacing: Spacing) -> np.ndarray:
    """[256], mm2, by the code of a cell: a bit for each voxel that is in the mask."""
    faces = np.prod(spacing) / np.array(spacing)  # area of a voxel's face across each axis
    return np.array([np.linalg.norm(_triangles(code) * faces, axis=-1).sum() for code in range(256)])


@functools.cache
def _triangles(code: int) -> np.ndarray:
    """[n, 3]: area vectors of the marching-cubes triangles in a cell of cubes of edge 1.

    Corners that only touch diagonally are separate, for whichever of mask and background has fewer corners. A polygon
    is divided into triangles from the corner that gives the largest area.
    """
    if code.bit_count() > 4:
        return _triangles(255 - code)
    bits = np.unpackbits(np.array([code], dtype=np.uint8), bitorder="little")
    parts, count = ndimage.label(bits.reshape(2, 2, 2))
    return np.concatenate([np.empty((0, 3)), *(_divide(_polygon(parts == number + 1)) for number in range(count))])


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


def _divide(polygon: np.ndarray) -> np.ndarray:
    """Area vectors [n - 2, 3] of the triangles of a polygon [n, 3]."""
    turned = np.stack([np.roll(polygon, -start, axis=0) for start in range(len(polygon))])  # [start, n, 3]
    spokes = turned[:, 1:] - turned[:, :1]
    fans = np.cross(spokes[:, :-1], spokes[:, 1:]) / 2
    return fans[np.linalg.norm(fans, axis=2).sum(axis=1).argmax()]
