"""Rigid registration of a series to the reference, and affine registration of the reference to a template: by mutual
information inside the brain, from many starts.

Patients move little between series of one study, and scanners record where a series lies. The position in the headers
is therefore kept unless another one is clearly better. Large displacements are searched on coarse, stripped images:
brains are placed on each other by their centres, rotations are tried, and the best few are refined.

The metric is computed at a few thousand points, drawn once inside the voxels of the brain: enough for 0.1 mm, and a
position off the voxel grid avoids the preference of interpolation for aligned grids.
"""

import itertools
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage, optimize

from anofpdm.raw.geometry import apply, average_blocks, resample, rigid_matrix
from anofpdm.scans.grid import Grid, bounding_box
from anofpdm.util.workers import cpu_cores, map_in_threads

COARSE_MM = 4.0
ANGLES = (-50.0, -25.0, 0.0, 25.0, 50.0)  # degrees about each axis
COARSE_STARTS = 3  # best of the tried rotations, refined on coarse images
BINS = 32
COARSE_POINTS, FINE_POINTS = 4_000, 25_000
SMOOTHING_MM = 1.0
LEAST_OVERLAP = 0.3  # fraction of the points inside the series' field of view
LEAST_GAIN = 0.02  # of mutual information, relative; below it, the headers' position is kept
LEAST_MOVEMENT_MM = 0.5  # mean over the brain; smaller ones are within the error of registration
LEAST_AFFINE_MOVEMENT_MM = 2.0  # normalisations of different programs differ as much
AROUND_TEMPLATE = 4  # voxels around the template's brain that the metric includes: its outline fixes the scales
AFFINE_POINTS = 12_000
AFFINE_STEPS = np.array([1.0] * 3 + [1.0] * 3 + [0.02] * 3 + [0.02] * 3)  # degrees, millimetres, sizes, shears


@dataclass(frozen=True)
class Head:
    """A series and its brain."""

    voxels: np.ndarray  # [i, j, k]
    brain: np.ndarray  # bool [i, j, k]
    grid: Grid

    @property
    def centre_mm(self) -> np.ndarray:
        """[3], of the brain."""
        return apply(self.grid.affine, np.array(ndimage.center_of_mass(self.brain)))

    @property
    def volume_ml(self) -> float:
        return float(self.brain.sum() * abs(np.linalg.det(self.grid.affine[:3, :3])) / 1000)


@dataclass(frozen=True)
class Registration:
    matrix: np.ndarray  # [4, 4], millimetres of the reference to millimetres of the series
    best_information: float  # mutual information inside the brain at the best position found, in nats
    kept: bool  # whether the position in the headers was kept


def register_rigid(reference: Head, series: Head) -> Registration:
    """Where the series lies relative to the reference."""
    start = search_coarse(reference, series)
    metric = Metric(_smoothed(reference), _smoothed(series), FINE_POINTS)
    matrix = optimise(metric, start, reference.centre_mm, np.ones(6), xtol=0.02, ftol=2e-5, maxiter=6)
    return _better_than_headers(metric, matrix, LEAST_MOVEMENT_MM)


def register_affine(template: Head, reference: Head) -> Registration:
    """From millimetres of the template to those of the reference; 12 parameters."""
    matrix, metric = find_affine(template, reference)
    return _better_than_headers(metric, matrix, LEAST_AFFINE_MOVEMENT_MM)


def find_affine(template: Head, reference: Head) -> tuple[np.ndarray, "Metric"]:
    """The best affine [4, 4], and the metric by which it was found."""
    centre = template.centre_mm
    stripped = replace(reference, voxels=np.where(reference.brain, reference.voxels, 0))
    size = (reference.volume_ml / template.volume_ml) ** (1 / 3)
    rigid = search_coarse(template, reference)
    around = ndimage.binary_dilation(template.brain, iterations=AROUND_TEMPLATE)
    metric = Metric(replace(template, brain=around), stripped, AFFINE_POINTS)
    starts = [rigid, rigid @ affine_matrix(np.array([0.0] * 6 + [size - 1] * 3 + [0.0] * 3), centre), np.eye(4)]
    best = max(starts, key=metric)
    return optimise(metric, best, centre, AFFINE_STEPS, xtol=0.05, ftol=1e-4, maxiter=8), metric


def _better_than_headers(metric: "Metric", matrix: np.ndarray, least_movement_mm: float) -> Registration:
    """The position in the headers, unless the other one is clearly better."""
    headers, best = metric(np.eye(4)), metric(matrix)
    movement = np.linalg.norm(metric.displacements(matrix), axis=1).mean()
    kept = bool(best - headers < LEAST_GAIN * headers or movement < least_movement_mm)
    return Registration(np.eye(4) if kept else matrix, best, kept)


class Metric:
    """Mutual information of a reference and a series, by the transform between them; higher is better."""

    def __init__(self, reference: Head, series: Head, points: int):
        rng = np.random.default_rng(0)
        inside = np.argwhere(reference.brain)
        rows = rng.choice(len(inside), min(points, len(inside)), replace=False)
        chosen = inside[np.sort(rows)]  # in the order of memory, which makes interpolation faster
        positions = chosen + rng.uniform(-0.5, 0.5, chosen.shape)
        values = ndimage.map_coordinates(reference.voxels, positions.T, order=1, mode="nearest", output=np.float32)
        self._row = np.round(_in_bins(values, *_range(reference))).astype(int) * BINS
        self._mm = np.ascontiguousarray(apply(reference.grid.affine, positions).T)  # [3, n]
        self._voxels, self._range = np.ascontiguousarray(series.voxels, np.float32), _range(series)
        self._to_voxels, self._last = np.linalg.inv(series.grid.affine), np.array([series.grid.shape]).T - 0.5

    def __call__(self, matrix: np.ndarray) -> float:
        voxels = self._moved(self._to_voxels @ matrix)
        seen = ((voxels >= -0.5) & (voxels <= self._last)).all(axis=0)
        if seen.mean() < LEAST_OVERLAP:
            return 0.0
        values = ndimage.map_coordinates(self._voxels, voxels[:, seen], order=1, mode="nearest", output=np.float32)
        bins = _in_bins(values, *self._range)
        lower = bins.astype(int)
        upper_share = bins - lower
        cells = self._row[seen] + lower
        counts = np.bincount(cells, 1 - upper_share, BINS**2) + np.bincount(cells + 1, upper_share, BINS**2)
        joint = (counts / counts.sum()).reshape(BINS, BINS)
        return _entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1)) - _entropy(joint)

    def displacements(self, matrix: np.ndarray) -> np.ndarray:
        """[n, 3] in millimetres, of the points inside the brain."""
        moved: np.ndarray = self._moved(matrix) - self._mm
        return moved.T

    def _moved(self, matrix: np.ndarray) -> np.ndarray:
        moved: np.ndarray = matrix[:3, :3] @ self._mm + matrix[:3, 3:]
        return moved


def optimise(metric: Metric, start: np.ndarray, centre: np.ndarray, steps: np.ndarray, **limits: float) -> np.ndarray:
    """The best transform near `start`; `steps`: sizes of a step along the parameters of `affine_matrix`."""

    def moved(numbers: np.ndarray) -> np.ndarray:
        return start @ affine_matrix(numbers * steps, centre)

    best = optimize.minimize(
        lambda numbers: -metric(moved(numbers)), np.zeros(len(steps)), method="Powell", options=limits
    )
    return moved(best.x)


def affine_matrix(parameters: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Degrees about x, y, z; millimetres; relative changes of size along x, y, z; shears xy, xz, yz; about `centre`.
    The last six may be left out."""
    degrees, shift, sizes, (xy, xz, yz) = np.pad(parameters, (0, 12 - len(parameters))).reshape(4, 3)
    stretch = np.array([[1 + sizes[0], xy, xz], [0, 1 + sizes[1], yz], [0, 0, 1 + sizes[2]]])
    matrix = rigid_matrix(tuple(degrees), np.zeros(3), np.zeros(3))
    matrix[:3, :3] = matrix[:3, :3] @ stretch
    matrix[:3, 3] = centre + shift - matrix[:3, :3] @ centre
    return matrix


def search_coarse(reference: Head, series: Head) -> np.ndarray:
    """The best rigid transform by coarse images of the brains."""
    centre, target, coarse = reference.centre_mm, series.centre_mm, coarse_brain(reference)
    around = ndimage.binary_dilation(coarse.brain, iterations=2)  # with the outline of the brain
    metric = Metric(replace(coarse, brain=around), coarse_brain(series), COARSE_POINTS)
    turned = [rigid_matrix(angles, centre, target) for angles in itertools.product(ANGLES, repeat=3)]
    best = np.argsort([metric(start) for start in turned])[::-1][:COARSE_STARTS]
    starts = [np.eye(4), rigid_matrix((0, 0, 0), centre, target), *(turned[row] for row in best)]

    def refine(start: np.ndarray) -> np.ndarray:
        return optimise(metric, start, centre, np.full(6, 4.0), xtol=0.02, ftol=2e-5 * 4.0**2, maxiter=6)

    return max(map_in_threads(refine, starts, cpu_cores()), key=metric)


def coarse_brain(head: Head) -> Head:
    """The brain alone, on an isotropic coarse grid with zeros around it."""
    sides = [(side.start, side.stop - 1) for side in bounding_box(head.brain)]
    corners = apply(head.grid.affine, np.array(list(itertools.product(*sides))))
    first, last = corners.min(axis=0) - 25 * COARSE_MM / 2, corners.max(axis=0) + 25 * COARSE_MM / 2
    affine = np.diag([COARSE_MM, COARSE_MM, COARSE_MM, 1.0])
    affine[:3, 3] = first
    i, j, k = (int(n) for n in np.ceil((last - first) / COARSE_MM))
    grid = Grid.from_affine((i, j, k), affine)
    stripped, brain = (
        resample(*average_blocks(voxels, head.grid, COARSE_MM / 2), grid, np.eye(4))
        for voxels in (np.where(head.brain, head.voxels, 0), head.brain)
    )
    return Head(ndimage.gaussian_filter(stripped, 0.7), brain >= 0.5, grid)


def _smoothed(head: Head) -> Head:
    """Along the axes whose voxels are small enough."""
    sigmas = [SMOOTHING_MM / step if step < 2 * SMOOTHING_MM else 0 for step in head.grid.spacing_mm]
    return replace(head, voxels=ndimage.gaussian_filter(head.voxels.astype(np.float32), sigmas, truncate=3))


def _range(head: Head) -> tuple[float, float]:
    low, high = np.percentile(head.voxels[head.brain], [0.5, 99.5])
    return float(low), float(max(high, low + 1e-6))


def _in_bins(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.clip((values - low) / (high - low) * (BINS - 1), 0, BINS - 1.001)


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return -float((positive * np.log(positive)).sum())
