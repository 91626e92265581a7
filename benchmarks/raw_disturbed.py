"""Raw studies whose truth is known: series of a registered scan, each moved by a rigid transform of its own, sampled on
a thick-slice grid of its own and, where stripping is tested, put into the head of another patient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK
from scipy import ndimage

from anofpdm.raw.geometry import LPS, resample, rigid_matrix
from anofpdm.raw.register import Head
from anofpdm.raw.thick import divide_slices, resample_series
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.grid import Grid

IN_PLANE_MM, SLICE_MM = (0.8, 1.2), (3.0, 5.0)
FIELD_OF_VIEW_MM = np.array([240.0, 240.0, 185.0])
MOST_DEGREES, MOST_MM = 30.0, 40.0  # of a movement
TILT_DEGREES, TILT_MM = 5.0, 5.0  # slices are not planned exactly along the head


@dataclass(frozen=True)
class Disturbance:
    """Of one study; matrices map the original position of the head to that during a series."""

    movements: Mapping[str, np.ndarray]
    grids: Mapping[str, Grid]

    def true_matrix(self, reference: str, name: str) -> np.ndarray:
        """What registration should find: from positions in the reference to positions in a series."""
        return np.asarray(self.movements[name] @ np.linalg.inv(self.movements[reference]))


def draw_disturbance(names: Sequence[str], centre: np.ndarray, rng: np.random.Generator) -> Disturbance:
    """The head lies anywhere during the first series, the reference; for each other one it has moved, by rotations and
    shifts up to the largest, uniform. The grid of a series is planned along the head."""
    movements: dict[str, np.ndarray] = {}
    grids = {}
    for name in names:
        moved = random_rigid(rng, centre, rng.uniform(0, MOST_DEGREES), rng.uniform(0, MOST_MM))
        movements[name] = movements[names[0]] @ moved if movements else moved
        tilt = random_rigid(rng, centre, rng.uniform(0, TILT_DEGREES), rng.uniform(0, TILT_MM))
        edges = np.array([*[rng.uniform(*IN_PLANE_MM)] * 2, rng.uniform(*SLICE_MM)])
        i, j, k = (int(n) for n in np.ceil(FIELD_OF_VIEW_MM / edges))
        affine = np.diag([-edges[0], -edges[1], edges[2], 1.0])
        affine[:3, 3] = centre - affine[:3, :3] @ ((np.array([i, j, k]) - 1) / 2)
        grids[name] = Grid.from_affine((i, j, k), movements[name] @ tilt @ affine)
    return Disturbance(movements, grids)


def read_transform(path: Path) -> np.ndarray:
    """[4, 4] in RAS+, of a linear transform in ITK's text format, which counts in LPS+."""
    transform = SimpleITK.ReadTransform(str(path))
    origin, *ends = (np.array(transform.TransformPoint(point)) for point in [(0, 0, 0), *np.eye(3).tolist()])
    lps = np.eye(4)
    lps[:3, :3] = np.transpose(np.array(ends) - origin)
    lps[:3, 3] = origin
    return LPS @ lps @ LPS


def random_rigid(rng: np.random.Generator, centre: np.ndarray, degrees: float, mm: float) -> np.ndarray:
    angles, shift = rng.normal(size=3), rng.normal(size=3)
    rotated = tuple(degrees * angles / np.linalg.norm(angles))
    return rigid_matrix(rotated, centre, centre + mm * shift / np.linalg.norm(shift))


def write_disturbed(heads: Mapping[str, Head], disturbance: Disturbance, folder: Path) -> dict[str, Path]:
    """The series as a scanner would have recorded them."""
    files = {}
    for name, head in heads.items():
        scanned = scan_head(head, disturbance.grids[name], disturbance.movements[name])
        files[name] = folder / f"scan_{name}.nii.gz"
        write_nifti(files[name], np.round(scanned.voxels).astype(np.int16), scanned.grid)
    return files


def write_aligned(
    heads: Mapping[str, Head], disturbance: Disturbance, reference: str, folder: Path, slice_mm: float | None
) -> dict[str, Path]:
    """All series on the slices of the disturbed reference, divided for the model, at their true positions: what perfect
    registration gives."""
    movement, grid = disturbance.movements[reference], disturbance.grids[reference]
    onto = grid if slice_mm is None else divide_slices(grid, slice_mm)
    return {
        name: write_restored(folder / f"scan_{name}.nii.gz", scan_head(head, grid, movement), onto, np.eye(4))
        for name, head in heads.items()
    }


def write_returned(heads: Mapping[str, Head], disturbance: Disturbance, folder: Path) -> dict[str, Path]:
    """The disturbed series, resampled to where the scan was: what perfect registration to a template gives."""
    files = {}
    for name, head in heads.items():
        movement = disturbance.movements[name]
        thick = scan_head(head, disturbance.grids[name], movement)
        files[name] = write_restored(folder / f"scan_{name}.nii.gz", thick, head.grid, movement)
    return files


def scan_head(head: Head, grid: Grid, movement: np.ndarray) -> Head:
    """The head after a movement, as a scanner would have recorded it on this grid."""
    there = np.linalg.inv(movement)
    return Head(
        resample(head.voxels, head.grid, grid, there), resample(head.brain, head.grid, grid, there) >= 0.5, grid
    )


def write_restored(path: Path, thick: Head, onto: Grid, matrix: np.ndarray) -> Path:
    write_nifti(path, np.round(resample_series(thick, onto, matrix)).astype(np.int16), onto)
    return path


def read_heads(files: Mapping[str, Path]) -> dict[str, Head]:
    """Stripped scans: what is not 0 is brain. Scaled so that rounding to integers loses nothing."""
    heads = {}
    for name, path in files.items():
        volume = read_volume(path)
        voxels = np.clip(volume.voxels, 0, None).astype(np.float32)
        brain = ndimage.binary_fill_holes(voxels > 0)
        heads[name] = Head(voxels * np.float32(1000 / np.percentile(voxels[brain], 99)), brain, volume.grid)
    return heads
