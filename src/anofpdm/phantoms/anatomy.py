"""A healthy brain: the average anatomy, deformed and folded at random for each patient, by smooth random fields."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial.transform import Rotation

from anofpdm.phantoms.atlas import Atlas, Bools, Floats

FIELD_OF_VIEW = 240.0  # mm, in x and y
HEIGHT = 150.0  # mm, in z
CENTRE = (0.0, -17.0, 6.0)  # MNI position of the centre of the grid and of the average brain
SPLINE_DEVIATION = 0.332  # standard deviation of a cubic spline with unit normal coefficients in three dimensions
RADII = (68.0, 86.0, 72.0)  # mm, of an ellipsoid around CENTRE of the size of an average brain


@dataclass(frozen=True)
class PhantomGrid:
    """RAS+ voxels."""

    size: int
    slices: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.size, self.size, self.slices

    @property
    def spacing(self) -> tuple[float, float, float]:
        return FIELD_OF_VIEW / self.size, FIELD_OF_VIEW / self.size, HEIGHT / self.slices

    def axes(self) -> list[Floats]:
        """Millimetre positions of the voxel centres along x, y and z."""
        return [
            np.asarray(middle + step * (np.arange(n) - (n - 1) / 2), np.float32)
            for n, step, middle in zip(self.shape, self.spacing, CENTRE, strict=True)
        ]

    def affine(self) -> NDArray[np.float64]:
        matrix = np.diag([*self.spacing, 1.0])
        matrix[:3, 3] = [c - s * (n - 1) / 2 for c, s, n in zip(CENTRE, self.spacing, self.shape, strict=True)]
        return matrix


def smooth_noise(rng: np.random.Generator, grid: PhantomGrid, scale: float) -> Floats:
    """A field of zero mean and unit deviation on the grid [x, y, z] that varies over about `scale` mm."""
    extents = (FIELD_OF_VIEW, FIELD_OF_VIEW, HEIGHT)
    knots = [int(np.ceil(extent / scale)) + 5 for extent in extents]
    field = rng.standard_normal(knots, dtype=np.float32)
    shifts = rng.random(3)  # different fields have different knots
    for axis, positions in enumerate(grid.axes()):
        steps = (positions - CENTRE[axis] + extents[axis] / 2) / scale + shifts[axis]
        field = _spline_along(field, axis, steps)
    return field / np.float32(SPLINE_DEVIATION)


def _spline_along(knots: Floats, axis: int, steps: Floats) -> Floats:
    """Cubic B-spline along one axis, at positions in units of knots. Not a matrix product, whose rounding may depend on
    the number of threads: equal seeds must give equal bytes."""
    first = np.floor(steps).astype(int)
    t = (steps - first).astype(np.float32)
    weights = ((1 - t) ** 3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (-3 * t**3 + 3 * t**2 + 3 * t + 1) / 6, t**3 / 6)
    planes = np.ascontiguousarray(np.moveaxis(knots, axis, 0))  # whole planes are gathered faster than single values
    out = np.zeros((len(steps), *planes.shape[1:]), np.float32)
    term = np.empty_like(out)
    for tap, weight in enumerate(weights):
        np.multiply(weight[:, None, None], planes[first + tap], out=term)
        out += term
    return np.ascontiguousarray(np.moveaxis(out, 0, axis))


def ramp(values: NDArray[np.floating[Any]], low: float, high: float) -> Floats:
    """0 below `low`, 1 above `high` (or the reverse where low > high), smooth between."""
    t = np.clip((values - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


@dataclass(frozen=True)
class Head:
    """Positions of the voxels of one brain, as a list of N in the order of `inside`."""

    rng: np.random.Generator
    grid: PhantomGrid
    inside: Bools  # [x, y, z]
    mm: Floats  # [3, N] positions in this head
    mni: Floats  # [3, N] corresponding positions in the average brain, before lesions displace tissue
    depth: Floats  # [N] mm below the brain surface

    def pick(self, field: Floats) -> Floats:
        return field[self.inside]

    def noise(self, scale: float) -> Floats:
        return self.pick(smooth_noise(self.rng, self.grid, scale))

    def spread(self, values: np.ndarray) -> np.ndarray:
        """From the list of N to the grid, 0 outside the brain."""
        volume = np.zeros(self.grid.shape, values.dtype)
        volume[self.inside] = values
        return volume


@dataclass(frozen=True)
class Tissues:
    """What is in the voxels of a head, where lesions have displaced it."""

    mni: Floats  # [3, N] corresponding positions in the average brain
    gm: Floats  # [N] fractions that add up to 1
    wm: Floats
    csf: Floats
    ventricle: Floats  # [N] mm to the lateral ventricles, negative inside


def make_head(rng: np.random.Generator, grid: PhantomGrid, atlas: Atlas) -> Head:
    """A head of random size, pose and shape."""
    mm = np.stack(np.meshgrid(*grid.axes(), indexing="ij"))  # [3, x, y, z]
    mni = _undo_pose(rng, mm)
    for scale, deviation in ((60.0, 3.0), (15.0, 1.5)):  # lobes, then gyri
        for axis in range(3):
            mni[axis] += deviation * smooth_noise(rng, grid, scale)
    inside = _largest_component(atlas.brain.at(mni) > 0.5)
    mm, mni = mm[:, inside], mni[:, inside]
    return Head(rng, grid, inside, mm, mni=_resize_ventricles(rng, mni, atlas), depth=atlas.depth.at(mni))


def _largest_component(region: Bools) -> Bools:
    pieces, count = ndimage.label(region)
    sizes = np.bincount(pieces.ravel(), minlength=count + 1)[1:]
    return pieces == 1 + np.argmax(sizes)


def _undo_pose(rng: np.random.Generator, mm: Floats) -> Floats:
    """Positions in a head of random pose and size to positions in the average brain."""
    nod, turn, tilt = rng.normal(0, [4.0, 2.5, 2.5])
    size = rng.uniform(0.92, 1.0) * rng.normal(1, 0.025, 3)
    rotation = Rotation.from_euler("XYZ", (nod, tilt, turn), degrees=True).as_matrix()
    matrix = (rotation / size[:, None]).astype(np.float32)
    x, y, z = (mm[axis] - np.float32(CENTRE[axis]) for axis in range(3))
    rotated = [a * x + b * y + c * z for a, b, c in matrix]  # no matrix product: see _spline_along
    return np.stack([part + np.float32(CENTRE[axis]) for axis, part in enumerate(rotated)])


def _resize_ventricles(rng: np.random.Generator, mni: Floats, atlas: Atlas) -> Floats:
    """Shift positions towards the ventricles to enlarge them, or away from them to shrink them."""
    growth = rng.triangular(-1.2, 0.8, 4.0)
    shift = growth * np.exp(-np.maximum(atlas.ventricle.at(mni), 0) / 14)
    away = np.stack([slope.at(mni) for slope in atlas.from_ventricle])
    return np.asarray(mni - shift * away, np.float32)


def fold(head: Head, mni: Floats, atlas: Atlas, atrophy: float) -> Tissues:
    """Tissue fractions at the positions `mni`. The cortex of the average brain is blurred: random sulci, perpendicular
    to the surface, decide between tissues wherever the average is ambiguous."""
    gm, wm = atlas.gm.at(mni), atlas.wm.at(mni)
    ventricle = atlas.ventricle.at(mni)
    _, y, z = mni
    crease = _radial_noise(head, 9.0)
    low = -z - 0.35 * (y + 40)  # mm below a plane just above the cerebellum
    shell = ramp(head.depth, 24, 10) * ramp(ventricle, 6, 14) * ramp(low, 24, 4)
    leaves = ramp(low, 14, 24) * ramp(y, -44, -52) * ramp(np.cos(np.hypot(y + 46, z + 22) * 0.8 + crease), 0.3, 1)
    opening = head.rng.normal(0.45 + atrophy, 0.3)  # width of the sulci, which grows with age
    furrow = np.exp(-((crease / 0.22) ** 2))
    logits = np.stack(
        [
            np.log(np.maximum(gm, 0.01)),
            np.log(np.maximum(wm, 0.01)) + shell * (1.1 * (np.abs(crease) - 0.75)),
            np.log(np.maximum(1 - gm - wm, 0.01)) + shell * (2.0 * furrow - 0.5) + 1.5 * leaves + opening,
        ]
    ) + 0.25 * np.stack([head.noise(5.0) for _ in range(3)])
    logits = logits / 0.42
    shares = np.exp(logits - logits.max(0))
    gm, wm, csf = shares / shares.sum(0)
    return Tissues(mni, gm, wm, csf, ventricle)


def _radial_noise(head: Head, scale: float) -> Floats:
    """Noise [N] that varies slowly with depth and fast along the surface, so that its zeros form sheets like sulci."""
    knots = head.rng.standard_normal([int(200 / scale) + 8] * 3, dtype=np.float32)
    offset = head.mm - np.float32(np.reshape(CENTRE, (3, 1)))
    reach = np.sqrt(sum((offset[axis] / RADII[axis]) ** 2 for axis in range(3)))  # 1 at the surface
    outward = offset * (0.3 + 0.7 / np.maximum(reach, 0.3))
    steps = outward / scale + (knots.shape[0] - 1) / 2
    noise = ndimage.map_coordinates(knots, steps, order=3, prefilter=False, mode="mirror")
    return noise / SPLINE_DEVIATION
