"""NIfTI headers with invalid or unusual fields, shapes, affines and voxels, and NIfTI-2."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import nibabel as nib
import numpy as np

from faults.bad_files.base import SHAPE, UNUSUAL, Change
from faults.bad_files.nifti_scan import FIELDS, INF, MIB, NAN, Scan, set_field, to_nifti, valid, voxels_of

Rows = tuple[tuple[Any, ...], ...]
FIELD_VALUES: dict[str, tuple[str, Rows, Rows]] = {  # field: its code; bad and valid values, one for each number
    "sizeof_hdr": ("i", ((0,), (540,)), ()),
    "dim": ("h", ((-1,), (0,), (2,), (8,)), ()),
    "datatype": ("h", ((0,), (1,), (32,), (128,), (2304,), (32767,), (2,), (64,)), ()),
    "vox_offset": ("f", ((NAN,), (-352,), (348,), (353,), (3e38,)), ((0,),)),
    "magic": ("4s", ((b"ni1",), (b"n+2",), (b"",)), ()),
    "xyzt_units": ("B", ((1,), (3,)), ((0,), (10,), (2 | 64,))),
    "srow_x": ("4f", tuple((bad,) * 4 for bad in (NAN, -INF, 1e30, 1e-30, 0.0)), ()),
    "quatern_b": ("3f", ((1, 1, 1), (INF, 0, 0), (NAN, 0, 0)), ()),
    "scl_slope": ("2f", ((INF, 0), (1, NAN), (1, INF), (3e38, 0), (-1, 0)), ((1, 0), (0, 5), (NAN, NAN))),
    "bitpix": ("h", (), ((8,),)), "extents": ("i", (), ((-1,),)), "cal_max": ("f", (), ((NAN,),)),
    "toffset": ("f", (), ((INF,),)), "descrip": ("8s", (), ((b"\xff\xfe\x00\x9f",),)),
    "sform_code": ("h", (), ((0,), (99,))), "qform_code": ("h", (), ((0,), (99,))),
}  # fmt: skip
SIZES = (0, -1, 19, 21, 32767)  # of the first axis
SHAPES = ((32767,) * 3, (513, 512, 512), (-20, -20, 8), (20, 1, 1))
MORE_AXES = ((1,), (1,) * 4, (2,), (0,), (-1,), (1, 3))
SFORMS = {
    "zero": [0.0] * 12, "NaN": [NAN] * 12, "singular": [1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
    "sheared": [1.0, 0.4, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0], "of 0.001 mm": (0.001 * np.eye(3, 4)).ravel().tolist(),
    "of 1000 mm": (1000.0 * np.eye(3, 4)).ravel().tolist(),
}  # fmt: skip
QFORMS = {"quatern_b": (1, 1, 1), "pixdim": (1, 0.0, 0.0, 0.0), "qoffset_x": (NAN, 0, 0)}


def headers(kind: str = "NIfTI header") -> Iterator[Scan]:
    for name, (code, bad, allowed) in FIELD_VALUES.items():
        for values in bad:
            yield Scan(f"{name} {values}", kind, set_field(name, code, *values))
        for values in allowed:
            yield valid(f"{name} {values}", set_field(name, code, *values))
    for size in SIZES:
        yield Scan(f"dim[1] {size}", kind, set_field("dim", "h", size, index=1))
    for shape in SHAPES:
        yield Scan(f"dim {shape}", kind, set_field("dim", "8h", 3, *shape, 1, 1, 1, 1))
    for more in MORE_AXES:
        sizes, is_valid = (*SHAPE, *more, *(1,) * (4 - len(more))), set(more) == {1}
        content = set_field("dim", "8h", 3 + len(more), *sizes)
        yield Scan(f"dim with axes {more}", UNUSUAL if is_valid else kind, content, is_valid)
    for size in (16, 8 * MIB):
        yield valid(f"extension of {size}", _extension(size, size))
    yield valid("extension of a wrong length", _extension(64, 2**31 - 1))


def _extension(size: int, declared: int) -> Change:
    def content(data: bytes) -> bytes:
        moved = set_field("vox_offset", "f", 352 + size)(data)
        return moved[:348] + b"\1\0\0\0" + struct.pack("<2i", declared, 6) + bytes(size - 8) + data[352:]

    return content


def affines(kind: str = "NIfTI header") -> Iterator[Scan]:
    """One of sform and qform alone, or the two in contradiction."""
    for name, row in SFORMS.items():
        yield Scan(f"sform {name}, no qform", kind, _only("qform_code", set_field("srow_x", "12f", *row)))
    for name, numbers in QFORMS.items():
        content = _only("sform_code", set_field(name, f"{len(numbers)}f", *numbers))
        yield Scan(f"{name} {numbers}, no sform", kind, content)
    yield Scan("sform and qform two millimetres apart", kind, _shifted(2.0, {"srow_x": 3}))
    yield Scan("not on the grid of the other modalities", kind, _shifted(0.01, {"srow_x": 3, "qoffset_x": 0}))
    yield valid("qfac 0", set_field("pixdim", "f", 0.0))  # the standard reads 0 as 1, the value of the valid scan
    yield valid("pixdim negative", set_field("pixdim", "3f", -8, -8, -24, index=1))


def _only(switched_off: str, change: Change) -> Change:
    return lambda data: change(set_field(switched_off, "h", 0)(data))


def _shifted(millimetres: float, numbers: dict[str, int]) -> Change:
    def content(data: bytes) -> bytes:
        for name, index in numbers.items():
            (value,) = struct.unpack_from("<f", data, FIELDS[name][1] + 4 * index)
            data = set_field(name, "f", value + millimetres, index=index)(data)
        return data

    return content


# ---- voxels ----------------------------------------------------------------------------------------------------------

COLOURS = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
VALID_TYPES = ("uint16", "uint32", "int64", "uint64", "float32", "float64", ">i2", ">f4", ">f8")
NIFTI2 = nib.Nifti2Header.template_dtype.fields
BAD_NIFTI2 = {"dim": (2**40, -(2**63), 0), "vox_offset": (-1, 2**62)}  # dim[0], the number of axes
SCALED = {"slope 2": (2.0, 0.0), "slope -1": (-1.0, 0.0), "intercept -32000": (1.0, -32000.0)}
BAD_VOXELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{f"one voxel {value}": lambda array, value=value: _with_one(array, value) for value in (NAN, INF, -INF)},
    **{f"all voxels {value}": lambda array, value=value: np.full_like(array, value) for value in (NAN, -INF, 0.0, 7.0)},
    "all voxels below 0": lambda array: -array - 1,
    "voxels beyond float32": lambda array: array.astype(float) * 1e300,
    "voxels too small for float32": lambda array: array.astype(float) * 1e-300,
    "voxels too faint to divide by": lambda array: array * np.float32(2.0**-147),
    "voxels of complex64": lambda array: array.astype("complex64"),
    "voxels of RGB": lambda array: array.astype("u1").astype(COLOURS),
}
VALID_FACTORS = {"of a billion": 2.0**20, "near the minimum of float32": 2.0**-134, "near the maximum": 2.0**117}


def voxels(kind: str = "NIfTI header") -> Iterator[Scan]:
    for name, change in BAD_VOXELS.items():
        yield Scan(name, kind, lambda data, change=change: to_nifti(change(voxels_of(data).astype(np.float32))))
    for name, factor in VALID_FACTORS.items():
        multiply = lambda data, factor=factor: to_nifti(voxels_of(data) * np.float32(factor))  # noqa: E731
        yield valid(f"voxels {name}", multiply)
    for dtype in VALID_TYPES:
        yield valid(dtype, lambda data, dtype=dtype: to_nifti(voxels_of(data).astype(dtype)))
    for name, (slope, inter) in SCALED.items():
        yield valid(f"stored with {name}", _scaled(slope, inter))
    for order in "<>":
        yield valid(f"NIfTI-2 {order}", lambda data, order=order: to_nifti2(data, f"{order}i2"))
    for name, values in BAD_NIFTI2.items():
        at = NIFTI2[name][1]
        yield Scan(f"NIfTI-2 truncated at {name}", kind, lambda data, at=at: to_nifti2(data)[:at])
        for value in values:
            number = struct.pack("<q", value)
            content = lambda data, at=at, number=number: _patched(to_nifti2(data), at, number)  # noqa: E731
            yield Scan(f"NIfTI-2 {name} {value}", kind, content)


def to_nifti2(data: bytes, dtype: str = "<i2") -> bytes:
    return to_nifti(voxels_of(data).astype(dtype), nib.Nifti2Image)


def _patched(data: bytes, at: int, number: bytes) -> bytes:
    return data[:at] + number + data[at + len(number) :]


def _scaled(slope: float, inter: float) -> Change:
    """Other numbers in the file, which its header maps to the same voxels."""

    def content(data: bytes) -> bytes:
        stored = to_nifti(((voxels_of(data) - inter) / slope).astype(np.float32))
        return set_field("scl_slope", "2f", slope, inter)(stored)

    return content


def _with_one(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.copy()
    changed.flat[7] = value
    return changed
