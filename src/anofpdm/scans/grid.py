"""Where voxels are: a scan's shape and its affine from voxel indices to scanner millimetres, as found on disk."""

import itertools
import warnings
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

from anofpdm.errors import ScanError, ScanWarning

LARGEST_SHEAR = 1e-3  # cosine between two voxel axes; rounding in a header stays below it
VOXEL_MM = (0.02, 50.0)  # smallest and largest believable voxel edge
FORMS_APART_MM = 1.0
GRIDS_APART_MM = 1e-3
UNITS_OF_LENGTH = 0x07  # the bits of xyzt_units that speak of space


@dataclass(frozen=True)
class Grid:
    shape: tuple[int, int, int]
    affine: np.ndarray  # [4, 4], voxel index to millimetres, RAS+
    header: nib.Nifti1Header  # what the input said of itself; results are written with it

    @classmethod
    def from_affine(cls, shape: tuple[int, int, int], affine: np.ndarray) -> "Grid":
        header = nib.Nifti1Header()
        header.set_data_shape(shape)
        header.set_xyzt_units("mm")
        header.set_qform(affine, code="scanner")
        header.set_sform(affine, code="scanner")
        return cls(shape, np.asarray(affine, dtype=np.float64), header)

    @property
    def spacing_mm(self) -> np.ndarray:
        """[3], the voxel's edge along each array axis."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)


def grid_of(header: nib.Nifti1Header, shape: tuple[int, int, int], path: Path) -> Grid:
    """The grid that a header describes, refused where it is ambiguous or impossible."""
    _check_units(header, path)
    affine = _chosen_affine(header, shape, path)
    check_affine(affine, path)
    return Grid(shape, affine, header)


def check_same_grid(first: Grid, first_path: Path, other: Grid, other_path: Path) -> None:
    if other.shape != first.shape:
        difference = f"{_times(other.shape)} voxels against {_times(first.shape)}"
    else:
        gap = corner_gap_mm(first.affine, other.affine, first.shape)
        if gap <= GRIDS_APART_MM:
            return
        difference = f"their corners are {gap:.3g} mm apart"
    raise ScanError(f"{other_path} is not on the grid of {first_path} ({difference}); resample it onto that grid first")


def corner_gap_mm(a: np.ndarray, b: np.ndarray, shape: tuple[int, int, int]) -> float:
    """How far apart two affines put the same voxel, at worst. The worst voxel of a linear map is a corner."""
    corners = np.array(list(itertools.product(*[(0, n - 1) for n in shape])))  # [8, 3]
    apart = corners @ (a - b)[:3, :3].T + (a - b)[:3, 3]
    return float(np.linalg.norm(apart, axis=1).max())


def _chosen_affine(header: nib.Nifti1Header, shape: tuple[int, int, int], path: Path) -> np.ndarray:
    header = header.copy()
    header["pixdim"][0] = -1 if header["pixdim"][0] < 0 else 1  # the standard reads 0 as 1
    header["pixdim"][1:4] = np.abs(header["pixdim"][1:4])
    try:
        sform = header.get_sform(coded=True)[0]
        qform = header.get_qform(coded=True)[0]
    except (nib.spatialimages.HeaderDataError, ValueError) as problem:
        raise ScanError(
            f"{path}: its orientation (qform) makes no sense: {problem}; set it anew from the source"
        ) from None
    if sform is not None and qform is not None:
        gap = corner_gap_mm(sform, qform, shape)
        if not gap <= FORMS_APART_MM:
            raise ScanError(
                f"{path}: its two orientations disagree (qform and sform put a corner {gap:.3g} mm apart), "
                "so left and right are in doubt; keep the right one and copy it over the other (fslorient, nifti_tool)"
            )
    if sform is None and qform is None:
        warnings.warn(
            f"{path}: no orientation in the header (qform and sform codes are 0); "
            "taking the third axis as inferior to superior, and left and right as unknown",
            ScanWarning,
            stacklevel=2,
        )
        return np.asarray(header.get_base_affine(), dtype=np.float64)
    return np.asarray(qform if sform is None else sform, dtype=np.float64)


def check_affine(affine: np.ndarray, path: Path | str) -> None:
    axes = affine[:3, :3]
    if not np.isfinite(affine).all():
        raise ScanError(f"{path}: its affine holds NaN or infinity; set the orientation anew from the source")
    lengths = np.linalg.norm(axes, axis=0)
    if (lengths == 0).any() or abs(np.linalg.det(axes / lengths)) < 1e-3:
        raise ScanError(
            f"{path}: its affine is singular (a voxel without volume); set the orientation anew from the source"
        )
    if lengths.min() < VOXEL_MM[0] or lengths.max() > VOXEL_MM[1]:
        size = " x ".join(f"{length:.3g}" for length in lengths)
        raise ScanError(f"{path}: voxels of {size} mm are not a head's; check the units in the header")
    cosines = np.abs((axes / lengths).T @ (axes / lengths) - np.eye(3))
    if cosines.max() > LARGEST_SHEAR:
        angle = np.degrees(np.arccos(cosines.max()))
        raise ScanError(
            f"{path}: its affine is sheared (two voxel axes stand at {angle:.1f} degrees, not 90); "
            "resample it onto a grid with right angles first"
        )


def _check_units(header: nib.Nifti1Header, path: Path) -> None:
    unit = {1: "metres", 3: "micrometres"}.get(int(header["xyzt_units"]) & UNITS_OF_LENGTH)
    if unit is not None:
        raise ScanError(f"{path}: its header counts in {unit}; convert it to millimetres first")


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
