"""Whether a scan shows the brain only."""

from scipy import ndimage

from anofpdm.scans.nifti import Volume
from anofpdm.scans.plausible import shows_air
from anofpdm.scans.slices import Scan

LARGEST_BRAIN_ML = 2300.0  # a head with its scalp has more


def shows_skull(scan: Scan) -> bool:
    """Whether a series shows more than a brain."""
    return any((volume > 0).sum() * scan.grid.voxel_ml > LARGEST_BRAIN_ML for volume in scan.volumes)


def is_stripped(volume: Volume) -> bool:
    """Exactly 0 around something that is no larger than a brain. Some scanners set the air around the head to 0 too."""
    if not shows_air([volume.voxels]):
        return False
    filled = ndimage.binary_fill_holes(volume.voxels > 0)
    return bool(filled.sum() * volume.grid.voxel_ml <= LARGEST_BRAIN_ML)
