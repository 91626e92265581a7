"""Checks of a raw series from its header, before anything is computed. Orientation itself is checked by the reader
(scans/grid.py): sform against qform, shear, singular or implausible axes."""

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.scans.grid import Grid, describe_grid

LEAST_SLICES = 8  # along any axis
LEAST_EXTENT_MM = 60.0
LARGEST_VOXEL_MM = 12.0


def check_header(grid: Grid, path: object) -> None:
    """Refuse localisers, single slabs and gapped scans, which do not show a brain in three dimensions."""
    extent = np.array(grid.shape) * grid.spacing_mm
    if min(grid.shape) < LEAST_SLICES:
        problem = f"only {min(grid.shape)} slices, a localiser or a slab"
    elif extent.min() < LEAST_EXTENT_MM:
        problem = f"covers only {extent.min():.0f} mm along one axis, less than a brain"
    elif grid.spacing_mm.max() > LARGEST_VOXEL_MM:
        problem = f"slices {grid.spacing_mm.max():.0f} mm apart, too far to register"
    else:
        return
    raise ScanError(f"{path}: {problem} ({describe_grid(grid)}); give a series that covers the brain")
