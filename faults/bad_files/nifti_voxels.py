"""NIfTI files with invalid or unusual voxel types and values, and NIfTI-2."""

import struct
from collections.abc import Callable, Iterator

import nibabel as nib
import numpy as np

from faults.bad_files.base import ValidFiles
from faults.bad_files.nifti_scan import FIELDS, INF, NAN, SIZE, Content, Scan, set_field, to_nifti, valid

COLOURS = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])


def voxel_types(kind: str = "voxel type") -> Iterator[Scan]:
    for code in (-1, 0, 1, 3, 5, 32, 128, 255, 1536, 1792, 2048, 2304, 32767, 2, 64, 8):
        yield Scan(f"datatype {code}", kind, set_field("datatype", "h", code))
    for dtype in ("complex64", "complex128"):
        yield Scan(f"voxels of {dtype}", kind, _as_type(dtype))
    yield Scan("voxels of RGB", kind, lambda files: to_nifti(files.voxels().astype("u1").astype(COLOURS)))
    header = set_field("datatype", "2h", 1536, 128)
    yield Scan("voxels of float128", kind, lambda files: header(files)[:352] + bytes(16 * SIZE))
    for dtype in ("uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", ">i2", ">f4", ">f8", ">u2"):
        yield valid(f"{dtype}", _as_type(dtype))
    for form in (nib.Nifti2Image, nib.Nifti1Image):
        for order in "<>":
            yield valid(f"{form.__name__} {order}", _as_type(f"{order}i2", form))
    for slope, inter in ((2.0, 0.0), (0.5, 0.0), (1.0, 100.0), (-1.0, 0.0), (1.0, -32000.0)):
        yield valid(f"stored with slope {slope} and intercept {inter}", _scaled(slope, inter))
    yield from _nifti2()


def _as_type(dtype: str, form: type = nib.Nifti1Image) -> Content:
    return lambda files: to_nifti(files.voxels().astype(dtype), form)


def _nifti2(kind: str = "NIfTI-2") -> Iterator[Scan]:
    fields = nib.Nifti2Header.template_dtype.fields
    for name, (_, at, *_rest) in fields.items():
        yield Scan(f"NIfTI-2 truncated before {name}", kind, lambda files, at=at: to_nifti2(files)[:at])
    for value in (2**40, 2**62, -(2**63), 0, -1, 21):
        yield Scan(f"NIfTI-2 dim[1] {value}", kind, _patch_nifti2(fields["dim"][1] + 8, value))
    for value in (-1, 0x7FFF, 2**63 - 1, -(2**63)):
        yield Scan(f"NIfTI-2 dim[0] {value}", kind, _patch_nifti2(fields["dim"][1], value))
        yield Scan(f"NIfTI-2 vox_offset {value}", kind, _patch_nifti2(fields["vox_offset"][1], value))


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

    def fill(value: float) -> Content:
        return changed(lambda array: np.full_like(array, value))

    def one(value: float) -> Content:
        return changed(
            lambda array: np.where(np.arange(array.size).reshape(array.shape) == 7, value, array).astype("f4")
        )

    for value in (NAN, INF, -INF):
        yield Scan(f"one voxel {value}", kind, one(value))
        yield Scan(f"all voxels {value}", kind, fill(value))
    for value in (0.0, 7.0, -3.0):
        yield Scan(f"all voxels {value}", kind, fill(value))
    yield Scan("all voxels below 0", kind, changed(lambda array: -array - 1))
    yield Scan("voxels beyond float32", kind, lambda files: to_nifti(files.voxels() * 1e300))
    yield Scan("voxels too small for float32", kind, lambda files: to_nifti(files.voxels() * 1e-300))
    yield Scan("voxels too faint to divide by", kind, changed(lambda array: array * 2.0**-147))
    yield valid("voxels of a billion", changed(lambda array: array * 2**20))
    yield valid("voxels of a billionth", changed(lambda array: array / 2**20))
    yield valid("voxels near the minimum of float32", changed(lambda array: array * 2.0**-134))
    yield valid("voxels near the maximum of float32", changed(lambda array: array * 2.0**117))
