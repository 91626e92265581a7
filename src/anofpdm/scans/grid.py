"""Geometry of a scan: shape and affine from voxel indices to scanner millimetres, as in the file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import ndimage

from anofpdm.errors import NO_ORIENTATION, ScanError, warn_scan

MAX_SHEAR = 1e-3  # cosine between two voxel axes; rounding in a header stays below it
VOXEL_MM = (0.02, 50.0)  # smallest and largest plausible voxel edge
MAX_FORM_GAP_MM = 1.0
MAX_GRID_GAP_MM = 1e-3
MAX_SIZE_ERROR = 0.01  # of pixdim, relative to sform
UNITS = {
    1000.0: "micrometres",
    10.0: "tenths of a millimetre",
    1 / 10: "centimetres",
    1 / 25.4: "inches",
    1e-3: "metres",
}
UNITS_OF_LENGTH = 0x07  # bits of xyzt_units for the unit of length


@dataclass(frozen=True)
class Grid:
    shape: tuple[int, int, int]
    affine: np.ndarray  # [4, 4], voxel index to millimetres, RAS+
    header: nib.Nifti1Header  # of the input; results are written with it

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
        """[3], voxel size along each array axis."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)

    @property
    def voxel_ml(self) -> float:
        return float(abs(np.linalg.det(self.affine[:3, :3])) / 1000)

    @property
    def oriented(self) -> bool:
        """Whether the header states an orientation; without it, left and right are unknown."""
        return bool(int(self.header["sform_code"]) or int(self.header["qform_code"]))

    @property
    def axial_axis(self) -> int:
        """The array axis from inferior to superior."""
        return int(np.argmax(nib.io_orientation(self.affine)[:, 0] == 2))

    @property
    def slice_mm(self) -> float:
        """Distance of axial slices."""
        return float(self.spacing_mm[self.axial_axis])


def grid_of(header: nib.Nifti1Header, shape: tuple[int, int, int], path: Path) -> Grid:
    """The grid that a header describes; ambiguous or invalid geometry is refused."""
    unit = {1: "metres", 3: "micrometres"}.get(int(header["xyzt_units"]) & UNITS_OF_LENGTH)
    if unit is not None:
        raise ScanError(f"its header is in {unit}; convert it to millimetres first")
    affine = _choose_affine(header, shape, path)
    check_affine(affine)
    if int(header["sform_code"]) and not int(header["qform_code"]):
        _warn_other_size(header, affine, path)
    return Grid(shape, affine, header)


def on_one_grid(grids: Sequence[Grid]) -> bool:
    first = grids[0]
    return all(
        grid.shape == first.shape and corner_gap_mm(first.affine, grid.affine, first.shape) <= MAX_GRID_GAP_MM
        for grid in grids[1:]
    )


def check_same_grid(first: Grid, first_path: Path, other: Grid, other_path: Path) -> None:
    if on_one_grid([first, other]):
        return
    apart = ""
    if other.shape == first.shape:
        apart = f", corners {corner_gap_mm(first.affine, other.affine, first.shape):.3g} mm apart"
    raise ScanError(
        f"{other_path} is not on the grid of {first_path} ({describe_grid(other)}, not {describe_grid(first)}{apart}); "
        "resample it onto that grid first"
    )


def describe_grid(grid: Grid) -> str:
    spacing = " x ".join(f"{edge:.3g}" for edge in grid.spacing_mm)
    return f"{' x '.join(map(str, grid.shape))} voxels of {spacing} mm ({''.join(nib.aff2axcodes(grid.affine))})"


def bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    """Of the voxels above 0; empty where there are none."""
    boxes = ndimage.find_objects((mask > 0).astype(np.uint8))
    return boxes[0] if boxes else (slice(0, 0),) * mask.ndim


def corner_gap_mm(a: np.ndarray, b: np.ndarray, shape: tuple[int, int, int]) -> float:
    """Largest distance between a voxel's positions by two affines; for a linear map, it is at a corner."""
    corners = np.array(list(itertools.product(*[(0, n - 1) for n in shape])))  # [8, 3]
    difference = corners @ (a - b)[:3, :3].T + (a - b)[:3, 3]
    return float(np.linalg.norm(difference, axis=1).max())


def _choose_affine(header: nib.Nifti1Header, shape: tuple[int, int, int], path: Path) -> np.ndarray:
    header = header.copy()
    header["pixdim"][0] = -1 if header["pixdim"][0] < 0 else 1  # the standard reads 0 as 1
    header["pixdim"][1:4] = np.abs(header["pixdim"][1:4])
    try:
        sform = header.get_sform(coded=True)[0]
        qform = header.get_qform(coded=True)[0]
    except (nib.spatialimages.HeaderDataError, ValueError) as problem:
        raise ScanError(f"invalid orientation (qform): {problem}; set it again from the source") from None
    if sform is not None and qform is not None:
        gap = corner_gap_mm(sform, qform, shape)
        if not gap <= MAX_FORM_GAP_MM:
            raise ScanError(
                f"qform and sform disagree (corners {gap:.3g} mm apart), so left and right are ambiguous; "
                "copy the correct one over the other (fslorient, nifti_tool)"
            )
    if sform is None and qform is None:
        warn_scan(
            f"{path}: {NO_ORIENTATION} (qform and sform codes are 0); "
            "the third axis is taken as inferior to superior; left and right are unknown"
        )
        return np.asarray(header.get_base_affine(), dtype=np.float64)
    return np.asarray(qform if sform is None else sform, dtype=np.float64)


def _warn_other_size(header: nib.Nifti1Header, sform: np.ndarray, path: Path) -> None:
    """Where the voxel sizes in pixdim and sform differ. With a qform, its comparison with the sform includes them."""
    pixdim, edges = np.abs(np.asarray(header["pixdim"][1:4], float)), np.linalg.norm(sform[:3, :3], axis=0)
    if np.allclose(pixdim, edges, rtol=MAX_SIZE_ERROR, atol=0):
        return
    by_pixdim, by_sform = (" x ".join(f"{mm:.3g}" for mm in size) for size in (pixdim, edges))
    warn_scan(
        f"{path}: its header states voxels of {by_pixdim} mm in pixdim and of {by_sform} mm in sform (qform is not "
        "set); sform is used. Volumes in ml are wrong if pixdim is right"
    )


def check_affine(affine: np.ndarray) -> None:
    axes = affine[:3, :3]
    if not np.isfinite(affine).all():
        raise ScanError("its affine contains NaN or infinity; set the orientation again from the source")
    lengths = np.linalg.norm(axes, axis=0)
    if (lengths == 0).any() or abs(np.linalg.det(axes / lengths)) < 1e-3:
        raise ScanError("its affine is singular (voxels without volume); set the orientation again from the source")
    if lengths.min() < VOXEL_MM[0] or lengths.max() > VOXEL_MM[1]:
        size = " x ".join(f"{length:.3g}" for length in lengths)
        unit = likely_unit(float(np.sort(lengths)[1]))
        raise ScanError(f"voxels of {size} mm are implausible for a head; check the units in the header: {unit}")
    cosines = np.abs((axes / lengths).T @ (axes / lengths) - np.eye(3))
    if cosines.max() > MAX_SHEAR:
        angle = np.degrees(np.arccos(cosines.max()))
        raise ScanError(
            f"its affine is sheared (two voxel axes are at {angle:.1f} degrees, not 90); "
            "resample it onto an orthogonal grid first"
        )


def likely_unit(factor: float) -> str:
    """What the unit of a header probably is, where sizes in it are too large by a factor."""
    value, name = min(UNITS.items(), key=lambda item: abs(np.log(item[0] / factor)))
    if abs(np.log10(value / factor)) > 0.35:
        return f"wrong by a factor of about {max(factor, 1 / factor):.2g}"
    return f"probably in {name} rather than millimetres"
