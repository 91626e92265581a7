"""Phantom studies whose series are moved by known transforms."""

from dataclasses import replace
from functools import cache

import numpy as np

from anofpdm.choices import PhantomKind
from anofpdm.phantoms.phantom_cohort import Phantom, PhantomConfig, make_phantom
from anofpdm.raw.geometry import apply, resample, rigid_matrix
from anofpdm.raw.register import Head
from anofpdm.scans.grid import Grid
from tests.dicom_toys import Series


@cache
def tumour_phantom() -> Phantom:
    return make_phantom(PhantomConfig(PhantomKind.TUMOUR, 3, size=120, slices=75), 1)


def thick_grid(matrix: np.ndarray, spacing: tuple[float, float, float], shape: tuple[int, int, int]) -> Grid:
    """A grid around the phantom's centre, placed in the scanner by `matrix`."""
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = np.array([0.0, -17.0, 6.0]) - affine[:3, :3] @ (np.array(shape) - 1) / 2
    return Grid.from_affine(shape, matrix @ affine)


def moved_head(modality: str, matrix: np.ndarray, grid: Grid) -> Head:
    """The phantom's series after the patient moved by `matrix`, as scanned on this grid, with noise."""
    volume = tumour_phantom().volumes[modality]
    voxels, brain = on_grid(volume, grid, matrix), on_grid(volume > 0, grid, matrix) >= 0.5
    noise = np.random.default_rng(5).normal(0, 0.02 * voxels.max(), voxels.shape)
    return Head(np.clip(voxels + noise, 0, None).astype(np.float32), brain, grid)


def on_grid(volume: np.ndarray, grid: Grid, matrix: np.ndarray) -> np.ndarray:
    source = Grid.from_affine(volume.shape, tumour_phantom().affine)
    return resample(volume, source, grid, np.linalg.inv(matrix))


def stripped_head(modality: str, matrix: np.ndarray, grid: Grid) -> Head:
    head = moved_head(modality, matrix, grid)
    return replace(head, voxels=np.where(head.brain, head.voxels, 0))


def lesion_on(grid: Grid, matrix: np.ndarray | None = None) -> np.ndarray:
    """The phantom's lesion after the movement, bool."""
    return on_grid(tumour_phantom().mask > 0, grid, np.eye(4) if matrix is None else matrix) >= 0.5


def random_rigid(rng: np.random.Generator, degrees: float, mm: float) -> np.ndarray:
    angles, shift = rng.normal(size=3), rng.normal(size=3)
    centre = np.array([0.0, -17.0, 6.0])
    target = centre + mm * shift / np.linalg.norm(shift)
    return rigid_matrix(tuple(degrees * angles / np.linalg.norm(angles)), centre, target)


def mean_error_mm(matrix: np.ndarray, true: np.ndarray, head: Head) -> float:
    """Mean distance of positions inside the brain by two transforms."""
    positions = apply(head.grid.affine, np.argwhere(head.brain)[::20])
    return float(np.linalg.norm(apply(matrix, positions) - apply(true, positions), axis=1).mean())


def dicom_series(head: Head, **tags: object) -> Series:
    """The head as a DICOM series: columns, rows and slices are the axes of its grid."""
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ head.grid.affine  # DICOM counts in LPS+
    across, down, step = head.grid.spacing_mm
    cosines = (affine[:3, :2] / (across, down)).T
    return Series(
        np.round(head.voxels * (1000 / head.voxels.max())).astype(np.int16).transpose(2, 1, 0),
        cosines=cosines,
        spacing=(down, across),
        step=step,
        origin=affine[:3, 3],
        **tags,
    )
