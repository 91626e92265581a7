"""What the series of a scan need: nothing, where they lie on one grid and hold the brain only."""

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from anofpdm.scans.grid import MAX_GRID_GAP_MM, Grid, corner_gap_mm
from anofpdm.scans.nifti import Volume
from anofpdm.scans.slices import Scan

LEAST_EMPTY = 0.3  # fraction of the voxels of a stripped scan that are exactly 0
LARGEST_BRAIN_ML = 2300.0  # a head with its scalp has more


def on_one_grid(grids: Sequence[Grid]) -> bool:
    first = grids[0]
    return all(
        grid.shape == first.shape and corner_gap_mm(first.affine, grid.affine, first.shape) <= MAX_GRID_GAP_MM
        for grid in grids[1:]
    )


def shows_skull(scan: Scan) -> bool:
    """Whether a series shows more than a brain."""
    voxel_ml = abs(np.linalg.det(scan.grid.affine[:3, :3])) / 1000
    return any((volume > 0).sum() * voxel_ml > LARGEST_BRAIN_ML for volume in scan.volumes)


def is_stripped(volume: Volume) -> bool:
    """Exactly 0 around something that is no larger than a brain. Some scanners set the air around the head to 0 too."""
    foreground = volume.voxels > 0
    if foreground.mean() > 1 - LEAST_EMPTY:
        return False
    filled = ndimage.binary_fill_holes(foreground)
    voxel_ml = abs(np.linalg.det(volume.grid.affine[:3, :3])) / 1000
    return bool(filled.sum() * voxel_ml <= LARGEST_BRAIN_ML)
