"""The average brain of MNI space, and how scans lie relative to it.

The template is nilearn's copy of ICBM 152 2009a (T1, 1 mm), which is part of its package and free to use. Mutual
information does not need equal contrasts, so that a study without T1 is registered by another series.
"""

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import nibabel as nib
import numpy as np

from anofpdm.errors import ConfigError
from anofpdm.raw.geometry import coverage, resample
from anofpdm.raw.register import Head, Registration, find_affine
from anofpdm.scans.grid import Grid

INSTALL_HINT = "pip install 'anofpdm[raw]'"
BRAIN_ABOVE = 0.2  # of the maximum of the T1, as in nilearn
SAME_SPACE = 0.9  # DICE with the template's brain: the scan is in its space already


@cache
def load_template(resolution: int = 1) -> Head:
    """T1 and brain mask, on a grid of `resolution` mm; read-only."""
    voxels, affine = _load("t1", resolution)
    brain = voxels > BRAIN_ABOVE
    voxels[~brain] = 0
    for array in (voxels, brain):
        array.flags.writeable = False
    return Head(voxels, brain, Grid.from_affine(brain.shape, affine))


def load_tissues(resolution: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of grey and white matter, float32, on the grid of `load_template`."""
    return _load("gm", resolution)[0], _load("wm", resolution)[0]


def _load(kind: str, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Values up to 1, and the affine; as nilearn reads them, but without importing nilearn, which takes seconds."""
    package = importlib.util.find_spec("nilearn")
    file = f"datasets/data/mni_icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"
    path = None if package is None or package.origin is None else Path(package.origin).parent / file
    if path is None or not path.is_file():
        raise ConfigError(f"MNI space needs nilearn, which is not installed; run {INSTALL_HINT}")
    image = nib.nifti1.load(path)
    voxels = np.asarray(image.dataobj).astype(np.float32)
    voxels /= voxels.max()
    every = slice(None, None, resolution)
    return voxels[every, every, every], image.affine @ np.diag([resolution] * 3 + [1.0])


def overlap_with(template: Head, brain: np.ndarray, grid: Grid, matrix: np.ndarray) -> float:
    """DICE of the template's brain and a scan's, in the field of view of the scan; `matrix` maps template to scan."""
    theirs = resample(brain, grid, template.grid, matrix) >= 0.5
    ours = template.brain & coverage(grid, template.grid, matrix)
    return float(2 * (ours & theirs).sum() / max(1, ours.sum() + theirs.sum()))


def in_template_space(brain: np.ndarray, grid: Grid) -> bool:
    return overlap_with(load_template(2), brain, grid, np.eye(4)) >= SAME_SPACE


def scan_position(registration: Registration, template_affine: Sequence[float] | None) -> np.ndarray:
    """[4, 4], from millimetres of the space that a model expects to those of the reference. The space differs from the
    template by `template_affine` (scans/expects.py). A scan that is in template space already is left there."""
    matrix = registration.matrix
    if not registration.kept and template_affine is not None:
        matrix = matrix @ np.linalg.inv(np.vstack([np.reshape(template_affine, (3, 4)), np.eye(4)[3]]))
    return matrix


def measure_affine(scan: Head) -> np.ndarray | None:
    """[4, 4], of a scan in template space: how its normalisation differs from our registration. None where it is in
    another space."""
    return find_affine(load_template(), scan)[0] if in_template_space(scan.brain, scan.grid) else None
