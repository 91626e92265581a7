"""NIfTI headers with invalid or unusual fields, shapes and affines."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from faults.bad_files.base import SHAPE, UNUSUAL, ValidFiles
from faults.bad_files.nifti_scan import DIM, FIELDS, INF, MIB, NAN, Content, Scan, set_field, valid

SINGULAR, SHEARED = [1.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], [1.0, 0.4, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
NUMBERS: tuple[tuple[str, str, tuple[Any, ...], tuple[Any, ...]], ...] = (  # field, its code, bad and valid values
    ("sizeof_hdr", "i", (0, 540, 0x5C010000), ()),
    ("dim", "h", (-1, 0, 2, 8, 256), ()),
    ("datatype", "h", (0, 1, 32, 128, 1536, 2304, 32767, 2, 64), ()),
    ("vox_offset", "f", (NAN, -352, 348, 353, 3e38), (0, -0.0)),
    ("magic", "4s", (b"ni1", b"n+2", b"", b"N+1"), ()),
    ("xyzt_units", "B", (1, 3), (0, 10, 2 | 64)),
    ("quatern_b", "f", (2, NAN), ()), ("srow_x", "f", (1.0,), ()),
    ("bitpix", "h", (), (8, -1)), ("extents", "i", (), (-1,)), ("slice_code", "b", (), (99,)),
    ("intent_code", "h", (), (32767,)), ("cal_max", "f", (), (NAN,)), ("toffset", "f", (), (INF,)),
    ("descrip", "8s", (), (b"\xff\xfe\x00\x9f",)), ("sform_code", "h", (), (0, 99)), ("qform_code", "h", (), (0, 99)),
)  # fmt: skip
ROWS: tuple[tuple[str, str, tuple[tuple[Any, ...], ...], tuple[tuple[Any, ...], ...]], ...] = (
    ("scl_slope", "2f", ((1, 0), (INF, 0), (1, NAN), (1, INF), (3e38, 0), (-1, 0)), ((0, 5), (NAN, NAN))),
    ("srow_x", "4f", tuple((bad,) * 4 for bad in (NAN, -INF, 1e30, 1e-30, 0.0)), ()),
    ("srow_z", "4f", tuple((bad,) * 4 for bad in (INF, 1e30, 0.0)), ()),
    ("quatern_b", "3f", ((1, 1, 1), (INF, 0, 0)), ()),
)
SIZES = (0, -1, 19, 21, 32767)  # of the first axis
SHAPES = ((32767,) * 3, (513, 512, 512), (-20, -20, 8), (20, 1, 1))
MORE_AXES = ((1,), (1,) * 4, (2,), (0,), (-1,), (1, 3))


def headers(kind: str = "header") -> Iterator[Scan]:
    for name, code, bad, allowed in (*NUMBERS, *ROWS):
        for value in (*bad, *allowed):
            content = set_field(name, code, *(value if isinstance(value, tuple) else (value,)))
            is_valid = value in allowed
            yield Scan(f"{name} {value!r}", UNUSUAL if is_valid else kind, content, is_valid)
    for size in SIZES:
        yield Scan(f"dim[1] {size}", kind, set_field("dim", "h", size, index=1))
    for shape in SHAPES:
        yield Scan(f"dim {shape}", kind, set_field("dim", DIM, 3, *shape, 1, 1, 1, 1))
    for more in MORE_AXES:
        sizes = (*SHAPE, *more, *(1,) * (4 - len(more)))
        yield Scan(f"dim {more}", kind, set_field("dim", DIM, 3 + len(more), *sizes), set(more) == {1})
    for size in (16, 8 * MIB):
        yield valid(f"extension of {size}", lambda files, size=size: _with_extension(files, size, size))
    yield valid("extension of a wrong length", lambda files: _with_extension(files, 64, 2**31 - 1))


def _with_extension(files: ValidFiles, size: int, declared: int) -> bytes:
    data = bytearray(set_field("vox_offset", "f", 352 + size)(files))
    data[348] = 1
    return bytes(data[:352]) + struct.pack("<2i", declared, 6) + bytes(size - 8) + bytes(data[352:])


def affines(kind: str = "affine") -> Iterator[Scan]:
    """One of sform and qform alone, or the two in contradiction."""
    scaled = {f"of {size} mm": (size * np.eye(3, 4)).ravel().tolist() for size in (0.001, 1000.0)}
    rows = {"zero": [0.0] * 12, "singular": SINGULAR, "sheared": SHEARED, "NaN": [NAN] * 12, **scaled}
    for name, row in rows.items():
        yield Scan(f"sform {name}, no qform", kind, _without("qform_code", "srow_x", "12f", *row))
    for numbers in ((1, 1, 1), (NAN, 0, 0)):
        yield Scan(f"quaternion {numbers}, no sform", kind, _without("sform_code", "quatern_b", "3f", *numbers))
    for size in (NAN, 0.0, 1e30):
        yield Scan(f"pixdim {size}, no sform", kind, _without("sform_code", "pixdim", "4f", 1, size, size, size))
    yield Scan("qoffset NaN, no sform", kind, _without("sform_code", "qoffset_x", "3f", NAN, 0, 0))
    yield Scan("sform and qform two millimetres apart", kind, _shifted(2.0, "srow_x"))
    yield Scan("not on the grid of the other modalities", kind, _shifted(0.01, "srow_x", "qoffset_x"))
    yield valid("qfac 0", set_field("pixdim", "f", 0.0))  # the standard reads 0 as 1, the value of the valid scan
    yield valid("pixdim negative", set_field("pixdim", "3f", -8, -8, -24, index=1))


def _without(code_name: str, name: str, code: str, *values: float) -> Content:
    """With the other form switched off."""

    def content(files: ValidFiles) -> bytes:
        data = bytearray(set_field(code_name, "h", 0)(files))
        struct.pack_into(f"<{code}", data, FIELDS[name][1], *values)
        return bytes(data)

    return content


def _shifted(millimetres: float, *names: str) -> Content:
    def content(files: ValidFiles) -> bytes:
        data = bytearray(files.scan())
        for name in names:
            at = FIELDS[name][1] + (12 if name == "srow_x" else 0)
            struct.pack_into("<f", data, at, struct.unpack_from("<f", data, at)[0] + millimetres)
        return bytes(data)

    return content
