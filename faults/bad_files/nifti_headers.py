"""NIfTI headers with invalid or unusual fields, shapes, affines and voxels, and NIfTI-2."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import nibabel as nib
import numpy as np

from faults.bad_files.base import SHAPE, Change
from faults.bad_files.nifti_scan import FIELDS, INF, NAN, Scan, set_field, to_nifti, voxels_of

Rows = tuple[tuple[Any, ...], ...]
# Field: its code; bad and valid values, one for each number. tests/scans has more of them.
FIELD_VALUES: dict[str, tuple[str, Rows, Rows]] = {
    "sizeof_hdr": ("i", ((0,), (540,)), ()),
    "dim": ("h", ((-1,), (2,), (8,)), ()),
    "datatype": ("h", ((0,), (1,), (128,), (2,), (64,)), ()),
    "vox_offset": ("f", ((348,), (353,)), ()),
    "magic": ("4s", ((b"",),), ()),
    "xyzt_units": ("B", ((3,),), ((0,), (10,), (2 | 64,))),
    "srow_x": ("4f", tuple((bad,) * 4 for bad in (NAN, -INF, 1e30, 1e-30)), ()),
    "quatern_b": ("3f", ((1, 1, 1), (NAN, 0, 0)), ()),
    "scl_slope": ("2f", ((1, NAN), (3e38, 0), (-1, 0)), ((0, 5), (NAN, NAN))),
    "bitpix": ("h", (), ((8,),)), "extents": ("i", (), ((-1,),)), "cal_max": ("f", (), ((NAN,),)),
    "descrip": ("8s", (), ((b"\xff\xfe\x00\x9f",),)), "qform_code": ("h", (), ((0,), (99,))),
}  # fmt: skip
SIZES = (0, -1, 19, 21, 32767)  # of the first axis
SHAPES = ((32767,) * 3, (513, 512, 512), (-20, -20, 8), (20, 1, 1))
MORE_AXES = ((1,), (1,) * 4, (2,), (0,), (-1,), (1, 3))
SFORMS = {
    "zero": [0.0] * 12, "of 0.001 mm": (0.001 * np.eye(3, 4)).ravel().tolist(),
    "of 1000 mm": (1000.0 * np.eye(3, 4)).ravel().tolist(),
}  # fmt: skip
QFORMS = {"quatern_b": (1, 1, 1), "pixdim": (1, 0.0, 0.0, 0.0), "qoffset_x": (NAN, 0, 0)}


def headers() -> Iterator[Scan]:
    for name, (code, bad, allowed) in FIELD_VALUES.items():
        for values in bad:
            yield Scan(f"{name} {values}", set_field(name, code, *values))
        for values in allowed:
            yield Scan(f"{name} {values}", set_field(name, code, *values), True)
    for size in SIZES:
        yield Scan(f"dim[1] {size}", set_field("dim", "h", size, index=1))
    for shape in SHAPES:
        yield Scan(f"dim {shape}", set_field("dim", "8h", 3, *shape, 1, 1, 1, 1))
    for more in MORE_AXES:
        sizes, is_valid = (*SHAPE, *more, *(1,) * (4 - len(more))), set(more) == {1}
        content = set_field("dim", "8h", 3 + len(more), *sizes)
        yield Scan(f"dim with axes {more}", content, is_valid)


def affines() -> Iterator[Scan]:
    """One of sform and qform alone, or the two in contradiction."""
    for name, row in SFORMS.items():
        yield Scan(f"sform {name}, no qform", _only("qform_code", set_field("srow_x", "12f", *row)))
    for name, numbers in QFORMS.items():
        content = _only("sform_code", set_field(name, f"{len(numbers)}f", *numbers))
        yield Scan(f"{name} {numbers}, no sform", content)
    yield Scan("not on the grid of the other modalities", _shifted)


def _only(switched_off: str, change: Change) -> Change:
    return lambda data: change(set_field(switched_off, "h", 0)(data))


def _shifted(data: bytes) -> bytes:
    """By a hundredth of a millimetre."""
    for name, index in {"srow_x": 3, "qoffset_x": 0}.items():
        (value,) = struct.unpack_from("<f", data, FIELDS[name][1] + 4 * index)
        data = set_field(name, "f", value + 0.01, index=index)(data)
    return data


# ---- voxels ----------------------------------------------------------------------------------------------------------


def _with_nan(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed.flat[7] = NAN
    return changed


COLOURS = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
VALID_TYPES = ("uint64", "float64", ">i2", ">f8")
BAD_VOXELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one voxel NaN": _with_nan,
    "all voxels -inf": lambda array: np.full_like(array, -INF),
    "all voxels 7": lambda array: np.full_like(array, 7),
    "all voxels below 0": lambda array: -array - 1,
    "voxels beyond float32": lambda array: array.astype(float) * 1e300,
    "voxels too small for float32": lambda array: array.astype(float) * 1e-300,
    "voxels too faint to divide by": lambda array: array * np.float32(2.0**-147),
    "voxels of complex64": lambda array: array.astype("complex64"),
    "voxels of RGB": lambda array: array.astype("u1").astype(COLOURS),
}
VALID_FACTORS = {"of a billion": 2.0**20, "near the minimum of float32": 2.0**-134, "near the maximum": 2.0**117}


def voxels() -> Iterator[Scan]:
    for name, change in BAD_VOXELS.items():
        yield Scan(name, lambda data, change=change: to_nifti(change(voxels_of(data).astype(np.float32))))
    for name, factor in VALID_FACTORS.items():
        multiply = lambda data, factor=factor: to_nifti(voxels_of(data) * np.float32(factor))  # noqa: E731
        yield Scan(f"voxels {name}", multiply, True)
    for dtype in VALID_TYPES:
        yield Scan(dtype, lambda data, dtype=dtype: to_nifti(voxels_of(data).astype(dtype)), True)
    for order in "<>":
        yield Scan(f"NIfTI-2 {order}", lambda data, order=order: to_nifti2(data, f"{order}i2"), True)


def to_nifti2(data: bytes, dtype: str = "<i2") -> bytes:
    return to_nifti(voxels_of(data).astype(dtype), nib.Nifti2Image)
