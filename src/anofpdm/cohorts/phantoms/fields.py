"""The voxel grid of phantoms, and smooth random fields on it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anofpdm.cohorts.phantoms.atlas import Floats

FIELD_OF_VIEW = 240.0  # mm, in x and y
HEIGHT = 150.0  # mm, in z
CENTRE = (0.0, -17.0, 6.0)  # MNI position of the centre of the grid and of the average brain
SPLINE_DEVIATION = 0.332  # standard deviation of a cubic spline with unit normal coefficients in three dimensions


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
    column = tuple(-1 if a == axis else 1 for a in range(3))
    out = np.zeros([len(steps) if a == axis else n for a, n in enumerate(knots.shape)], np.float32)
    for tap, weight in enumerate(weights):
        out += weight.reshape(column) * np.take(knots, first + tap, axis=axis)
    return out


def ramp(values: NDArray[np.floating[Any]], low: float, high: float) -> Floats:
    """0 below `low`, 1 above `high` (or the reverse where low > high), smooth between."""
    t = np.clip((values - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)
