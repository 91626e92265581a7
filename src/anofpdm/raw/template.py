"""The average brain of MNI space, and the affine registration of a study to it.

The template is nilearn's copy of ICBM 152 2009a (T1, 1 mm), which is part of its package and free to use. Mutual
information does not need equal contrasts, so that a study without T1 is registered by another series.
"""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from scipy import ndimage, optimize

from anofpdm.errors import ConfigError
from anofpdm.raw.geometry import coverage, resample, rigid_matrix
from anofpdm.raw.register import LEAST_GAIN, Head, Metric, Registration, coarse_brain, search_coarse
from anofpdm.scans.grid import Grid

MNI152 = "mni152"
INSTALL_HINT = "pip install 'anofpdm[raw]'"
BRAIN_ABOVE = 0.2  # of the maximum of the T1, as in nilearn
SAME_SPACE = 0.9  # DICE with the template's brain: the scan is in its space already
LEAST_MOVEMENT_MM = 2.0  # mean over the brain; normalisations of different programs differ as much
AROUND = 4  # voxels around the template's brain that the metric includes: its outline fixes the scales
POINTS = 12_000
# Size of a step along each parameter: degrees, millimetres, relative sizes along the axes, shears.
STEPS = np.array([1.0] * 3 + [1.0] * 3 + [0.02] * 3 + [0.02] * 3)


@cache
def load_template(resolution: int = 1) -> Head:
    """T1 and brain mask, on a grid of `resolution` mm; read-only."""
    image, mask = _load("template"), _load("brain_mask")
    every = (slice(None, None, resolution),) * 3
    brain = np.asarray(mask.dataobj)[every] > 0
    grid = Grid.from_affine(brain.shape, image.affine @ np.diag([resolution] * 3 + [1.0]))
    voxels = np.where(brain, np.asarray(image.dataobj, np.float32)[every], 0)
    for array in (voxels, brain):
        array.flags.writeable = False
    return Head(voxels, brain, grid)


def load_tissues(resolution: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of grey and white matter, float32, on the grid of `load_template`."""
    every = (slice(None, None, resolution),) * 3
    grey, white = (np.asarray(_load(name).dataobj, np.float32)[every] for name in ("gm_template", "wm_template"))
    return grey, white


def _load(name: str) -> Any:
    """An image of 1 mm. Coarser ones of nilearn are every n-th voxel of it, but take seconds."""
    stored = _read_stored(name)
    if stored is not None:
        return stored
    try:
        import nilearn.datasets as datasets
    except ImportError:
        raise ConfigError(f"MNI space needs nilearn, which is not installed; run {INSTALL_HINT}") from None
    return getattr(datasets, f"load_mni152_{name}")(1)


def _read_stored(name: str) -> Any | None:
    """As nilearn reads it, without importing nilearn, which takes seconds; None where the file is elsewhere."""
    package = importlib.util.find_spec("nilearn")
    kind = {"gm_template": "gm", "wm_template": "wm"}.get(name, "t1")
    file = f"datasets/data/mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
    path = None if package is None or package.origin is None else Path(package.origin).parent / file
    if path is None or not path.is_file():
        return None
    image: Any = nib.load(path)
    voxels = np.asarray(image.dataobj).astype(np.float32)
    voxels /= voxels.max()
    return nib.Nifti1Image((voxels > BRAIN_ABOVE).astype(np.int8) if name == "brain_mask" else voxels, image.affine)


def overlap_with(template: Head, brain: np.ndarray, grid: Grid, matrix: np.ndarray) -> float:
    """DICE of the template's brain and a scan's, in the field of view of the scan; `matrix` maps template to scan."""
    theirs = resample(brain, grid, template.grid, matrix) >= 0.5
    ours = template.brain & coverage(grid, template.grid, matrix)
    return float(2 * (ours & theirs).sum() / max(1, ours.sum() + theirs.sum()))


def in_template_space(brain: np.ndarray, grid: Grid) -> bool:
    return overlap_with(load_template(2), brain, grid, np.eye(4)) >= SAME_SPACE


def register_affine(template: Head, reference: Head) -> Registration:
    """From millimetres of the template to those of the reference; 12 parameters."""
    found, metric = find_affine(template, reference)
    headers, best = metric(np.eye(4)), metric(found)
    movement = np.linalg.norm(metric.displacements(found), axis=1).mean()
    kept = bool(best - headers < LEAST_GAIN * headers or movement < LEAST_MOVEMENT_MM)
    return Registration(np.eye(4) if kept else found, best, headers, kept)


def find_affine(template: Head, reference: Head) -> tuple[np.ndarray, Metric]:
    """The best affine [4, 4], and the metric by which it was found."""
    centre = template.centre_mm
    stripped = Head(np.where(reference.brain, reference.voxels, 0), reference.brain, reference.grid)
    size = (reference.volume_ml / template.volume_ml) ** (1 / 3)
    rigid = search_coarse(coarse_brain(template), coarse_brain(stripped), centre, reference.centre_mm)
    around = ndimage.binary_dilation(template.brain, iterations=AROUND)
    metric = Metric(Head(template.voxels, around, template.grid), stripped, POINTS)
    starts = [rigid, rigid @ affine_matrix(np.array([0.0] * 6 + [size - 1] * 3 + [0.0] * 3), centre), np.eye(4)]
    return optimise_affine(metric, max(starts, key=metric), centre), metric


def scan_position(found: Registration, template_affine: Sequence[float] | None) -> np.ndarray:
    """[4, 4], from millimetres of the space that a model expects to those of the reference. The space differs from the
    template by `template_affine` (scans/expects.py). A scan that is in template space already is left there."""
    if found.kept or template_affine is None:
        return found.matrix
    position: np.ndarray = found.matrix @ np.linalg.inv(np.vstack([np.reshape(template_affine, (3, 4)), np.eye(4)[3]]))
    return position


def measure_affine(scan: Head) -> np.ndarray | None:
    """[4, 4], of a scan in template space: how its normalisation differs from our registration. None where it is in
    another space."""
    return find_affine(load_template(), scan)[0] if in_template_space(scan.brain, scan.grid) else None


def optimise_affine(metric: Metric, start: np.ndarray, centre: np.ndarray) -> np.ndarray:
    def moved(steps: np.ndarray) -> np.ndarray:
        return start @ affine_matrix(steps * STEPS, centre)

    options = {"direc": np.eye(12), "xtol": 0.05, "ftol": 1e-4, "maxiter": 8}
    found = optimize.minimize(lambda steps: -metric(moved(steps)), np.zeros(12), method="Powell", options=options)
    return moved(found.x)


def affine_matrix(parameters: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Degrees about x, y, z; millimetres; relative changes of size along x, y, z; shears xy, xz, yz; about `centre`."""
    degrees, shift, sizes, (xy, xz, yz) = parameters.reshape(4, 3)
    stretch = np.array([[1 + sizes[0], xy, xz], [0, 1 + sizes[1], yz], [0, 0, 1 + sizes[2]]])
    matrix = rigid_matrix(tuple(degrees), np.zeros(3), np.zeros(3))
    matrix[:3, :3] = matrix[:3, :3] @ stretch
    matrix[:3, 3] = centre + shift - matrix[:3, :3] @ centre
    return matrix
