"""NIfTI files with invalid or unusual voxel types and values, and NIfTI-2."""

import struct
from collections.abc import Callable, Iterator

import nibabel as nib
import numpy as np

from faults.bad_files.base import ValidFiles
from faults.bad_files.nifti_scan import FIELDS, INF, NAN, SIZE, Content, Scan, set_field, to_nifti, valid

COLOURS = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
VALID_TYPES = ("uint16", "uint32", "int64", "uint64", "float32", "float64", ">i2", ">f4", ">f8")
NIFTI2 = nib.Nifti2Header.template_dtype.fields
VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{f"one voxel {value}": lambda array, value=value: _with_one(array, value) for value in (NAN, INF, -INF)},
    **{f"all voxels {value}": lambda array, value=value: np.full_like(array, value) for value in (NAN, -INF, 0.0, 7.0)},
    "all voxels below 0": lambda array: -array - 1,
    "voxels beyond float32": lambda array: array.astype(float) * 1e300,
    "voxels too small for float32": lambda array: array.astype(float) * 1e-300,
    "voxels too faint to divide by": lambda array: array * 2.0**-147,
}
VALID_FACTORS = {"of a billion": 2.0**20, "near the minimum of float32": 2.0**-134, "near the maximum": 2.0**117}


def voxel_types(kind: str = "voxel type") -> Iterator[Scan]:
    for dtype in ("complex64", "complex128"):
        yield Scan(f"voxels of {dtype}", kind, _as_type(dtype))
    yield Scan("voxels of RGB", kind, lambda files: to_nifti(files.voxels().astype("u1").astype(COLOURS)))
    header = set_field("datatype", "2h", 1536, 128)
    yield Scan("voxels of float128", kind, lambda files: header(files)[:352] + bytes(16 * SIZE))
    for dtype in VALID_TYPES:
        yield valid(dtype, _as_type(dtype))
    for order in "<>":
        yield valid(f"NIfTI-2 {order}", _as_type(f"{order}i2", nib.Nifti2Image))
    for slope, inter in ((2.0, 0.0), (-1.0, 0.0), (1.0, -32000.0)):
        yield valid(f"stored with slope {slope} and intercept {inter}", _scaled(slope, inter))
    for name in list(NIFTI2)[::7]:
        yield Scan(f"NIfTI-2 truncated before {name}", "NIfTI-2", lambda f, at=NIFTI2[name][1]: to_nifti2(f)[:at])
    for name, index, values in (("dim", 1, (2**40, -(2**63), 0)), ("dim", 0, (-1,)), ("vox_offset", 0, (-1, 2**62))):
        for value in values:
            content = _patch_nifti2(NIFTI2[name][1] + 8 * index, value)
            yield Scan(f"NIfTI-2 {name}[{index}] {value}", "NIfTI-2", content)


def _as_type(dtype: str, form: type = nib.Nifti1Image) -> Content:
    return lambda files: to_nifti(files.voxels().astype(dtype), form)


def to_nifti2(files: ValidFiles) -> bytes:
    return to_nifti(files.voxels(), nib.Nifti2Image)


def _patch_nifti2(at: int, value: int) -> Content:
    return lambda files: to_nifti2(files)[:at] + struct.pack("<q", value) + to_nifti2(files)[at + 8 :]


def _scaled(slope: float, inter: float) -> Content:
    """Other numbers in the file, which its header maps to the same voxels."""

    def content(files: ValidFiles) -> bytes:
        data = bytearray(to_nifti(((files.voxels() - inter) / slope).astype(np.float32)))
        struct.pack_into("<2f", data, FIELDS["scl_slope"][1], slope, inter)
        return bytes(data)

    return content


def voxel_values(kind: str = "voxel values") -> Iterator[Scan]:
    def changed(change: Callable[[np.ndarray], np.ndarray]) -> Content:
        return lambda files: to_nifti(change(files.voxels().astype(np.float32)))

    for name, change in VALUES.items():
        yield Scan(name, kind, changed(change))
    for name, factor in VALID_FACTORS.items():
        yield valid(f"voxels {name}", changed(lambda array, factor=factor: array * np.float32(factor)))


def _with_one(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed.flat[7] = value
    return changed
