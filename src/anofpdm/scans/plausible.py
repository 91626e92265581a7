"""Whether a scan can be a human head, by its size in millimetres, whether it shows the brain only, and whether parts of
it are missing.

Limits leave room for preterm infants (brains of at least 60 mm), neck and shoulders in the field of view, slabs and
single slices. They find units that are wrong by a factor of about 7 and more, and of 2 in stripped brains.
"""

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from anofpdm.errors import ScanError, warn_scan
from anofpdm.scans.grid import Grid, bounding_box, describe_grid, likely_unit
from anofpdm.scans.slices import Scan, foreground_of

EXTENT_MM = (30.0, 600.0)  # of the foreground: the second largest extent at least, the largest at most
SMALLEST_VOXEL_MM = 0.15  # living heads move too much for smaller ones
LARGEST_HEAD_ML = 10_000.0  # with the neck, where the air is 0
LARGEST_BRAIN_ML = 2300.0  # a head with its scalp has more
LEAST_SLICES = 8  # of a raw series, along any axis
LEAST_EXTENT_MM = 60.0
LARGEST_VOXEL_MM = 12.0
LEAST_AIR = 0.3  # fraction of voxels that are 0, if the air is
USUAL_MM = 180.0
TOP_MM = 70.0  # from the largest axial section of a brain to its top
LEAST_CUT_MM = 8.0
SLAB_MM = 60.0  # lower brains are slabs, given as such
NIFTI_HEADER = "sform and pixdim in its header"  # of files that DICOM was converted to
DICOM_HEADER = "PixelSpacing and ImagePositionPatient"


def check_head(volumes: Sequence[np.ndarray], grid: Grid, where: object) -> None:
    """ScanError where the foreground has a size that no head has."""
    foreground = foreground_of(volumes)
    extent = np.array([side.stop - side.start for side in bounding_box(foreground)]) * grid.spacing_mm
    millilitres = foreground.sum() * grid.voxel_ml
    size = f"{' x '.join(f'{mm:.0f}' for mm in extent)} mm"
    if extent.max() > EXTENT_MM[1]:
        problem = f"shows something of {size}, larger than a head"
    elif np.sort(extent)[1] < EXTENT_MM[0]:
        problem = f"shows something of {size}, smaller than the head of a preterm infant"
    elif grid.spacing_mm.min() < SMALLEST_VOXEL_MM:
        problem = f"has voxels smaller than {SMALLEST_VOXEL_MM:g} mm, too small for a scan of a head"
    elif millilitres > LARGEST_HEAD_ML and foreground.mean() <= 1 - LEAST_AIR:
        problem = f"shows something of {millilitres:,.0f} ml, larger than a head"
    else:
        return
    raise ScanError(
        f"{where}: {problem} ({describe_grid(grid)}). The voxel size comes from {header_field(grid)}, "
        f"{likely_unit(float(extent.max()) / USUAL_MM)}; correct it, or give --trust-header if it is right"
    )


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


def header_field(grid: Grid) -> str:
    if int(grid.header["sform_code"]):
        return NIFTI_HEADER
    return f"pixdim in its header (sform unset, qform {'set' if int(grid.header['qform_code']) else 'unset'})"


def warn_empty_planes(volumes: Sequence[np.ndarray], grid: Grid, where: object) -> None:
    """Planes without any voxel above 0 between planes that have some."""
    foreground = foreground_of(volumes)
    for axis in range(3):
        filled = _planes(foreground, axis) > 0
        inside = np.flatnonzero(filled)
        if not len(inside):
            return
        empty = np.flatnonzero(~filled[inside[0] : inside[-1]]) + inside[0]
        if len(empty):
            what = "axial slices" if axis == grid.axial_axis else f"planes along axis {axis + 1} of the file"
            share = f"{len(empty)} of its {inside[-1] - inside[0] + 1} {what} inside the head"
            warn_scan(
                f"{where}: {share} are empty (the first is number {empty[0] + 1} in the file); "
                "lesions there are missed. Export the scan again"
            )


def warn_cut_top(brain: np.ndarray, grid: Grid, where: object) -> None:
    """Where the brain ends at the upper edge of the image. At the lower edge that is usual."""
    axis = grid.axial_axis
    areas = _planes(brain, axis)
    areas = areas if grid.affine[2, axis] > 0 else areas[::-1]
    if np.count_nonzero(areas) * grid.slice_mm < SLAB_MM:
        return
    depth_mm = TOP_MM * (1 - np.sqrt(1 - areas[-1] / areas.max()))  # of an ellipsoid
    missing_mm = depth_mm - grid.slice_mm / 2
    if missing_mm > max(LEAST_CUT_MM, grid.slice_mm):
        warn_scan(
            f"{where}: the brain reaches the upper edge of the image; about {missing_mm / grid.slice_mm:.0f} slices "
            f"({missing_mm:.0f} mm) may be missing at the top. Lesions there are missed; "
            "check that the series is complete"
        )


def shows_air(volumes: Sequence[np.ndarray]) -> bool:
    """Whether much around the head is exactly 0, as after skull-stripping."""
    return bool(foreground_of(volumes).mean() <= 1 - LEAST_AIR)


def is_stripped(voxels: np.ndarray, grid: Grid) -> bool:
    """Exactly 0 around something that is no larger than a brain. Some scanners set the air around the head to 0 too."""
    if not shows_air([voxels]):
        return False
    filled = ndimage.binary_fill_holes(voxels > 0)
    return bool(filled.sum() * grid.voxel_ml <= LARGEST_BRAIN_ML)


def shows_skull(scan: Scan) -> bool:
    """Whether a series shows more than a brain."""
    return any((volume > 0).sum() * scan.grid.voxel_ml > LARGEST_BRAIN_ML for volume in scan.volumes)


def _planes(mask: np.ndarray, axis: int) -> np.ndarray:
    """Number of voxels in each plane across an axis."""
    return np.asarray(mask.sum(axis=tuple(other for other in range(3) if other != axis)))
