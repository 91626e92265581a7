"""NIfTI headers with invalid or unusual fields and affines."""

import struct
from collections.abc import Iterator

import numpy as np

from faults.bad_files.base import SHAPE, ValidFiles
from faults.bad_files.nifti_scan import DIM, FIELDS, INF, MIB, NAN, Content, Scan, set_field, valid


def headers(kind: str = "header") -> Iterator[Scan]:
    for value in (0, 347, 349, 540, -348, 0x5C010000):
        yield Scan(f"sizeof_hdr {value}", kind, set_field("sizeof_hdr", "i", value))
    yield from _shapes(kind)
    for offset, allowed in ((0, 1), (-0.0, 1), (NAN, 0), (INF, 0), (-352, 0), (1, 0), (348, 0), (351, 0), (353, 0),
                            (368, 0), (1e9, 0), (3e38, 0)):  # fmt: skip
        yield Scan(f"vox_offset {offset}", kind, set_field("vox_offset", "f", offset), bool(allowed))
    for slope, inter, allowed in ((0, 5, 1), (NAN, NAN, 1), (1, 0, 1), (INF, 0, 0), (-INF, 0, 0), (1, NAN, 0),
                                  (1, INF, 0), (3e38, 0, 0), (-1, 0, 0)):  # fmt: skip
        yield Scan(f"scl {slope} {inter}", kind, set_field("scl_slope", "2f", slope, inter), bool(allowed))
    for magic in (b"ni1", b"n+2", b"", b"N+1", b"n+3"):
        yield Scan(f"magic {magic!r}", kind, set_field("magic", "4s", magic))
    for units, allowed in ((0, 1), (1, 0), (3, 0), (10, 1), (2 | 64, 1)):
        yield Scan(f"xyzt_units {units}", kind, set_field("xyzt_units", "B", units), bool(allowed))
    for name, code, value in (("bitpix", "h", 8), ("bitpix", "h", -1), ("extents", "i", -1), ("slice_code", "b", 99),
                              ("intent_code", "h", 32767), ("cal_max", "f", NAN), ("toffset", "f", INF)):  # fmt: skip
        yield valid(f"{name} {value}", set_field(name, code, value))
    yield valid("descrip not text", set_field("descrip", "8s", b"\xff\xfe\x00\x9f"))
    for size in (16, 4096, 8 * MIB):
        yield valid(f"extension of {size}", lambda files, size=size: _with_extension(files, size, size))
    yield valid("extension of a wrong length", lambda files: _with_extension(files, 64, 2**31 - 1))


def _shapes(kind: str) -> Iterator[Scan]:
    for axes in (-1, 0, 1, 2, 8, 9, 256, 32767, -32768):
        yield Scan(f"dim[0] {axes}", kind, set_field("dim", "h", axes))
    for size in (0, -1, -20, 1, 19, 21, 20 * 256, 32767):
        yield Scan(f"dim[1] {size}", kind, set_field("dim", "h", size, index=1))
    for shape in ((32767,) * 3, (2000,) * 3, (513, 512, 512), (-20, -20, 8), (20, 20, 1), (20, 1, 1)):
        yield Scan(f"dim {shape}", kind, set_field("dim", DIM, 3, *shape, 1, 1, 1, 1))
    for axes, rest, allowed in ((4, (1,), 1), (5, (1, 1), 1), (7, (1,) * 4, 1), (4, (2,), 0), (4, (0,), 0),
                                (4, (-1,), 0), (5, (1, 3), 0), (7, (32767,) * 4, 0)):  # fmt: skip
        sizes = (*SHAPE, *rest, *(1,) * (4 - len(rest)))
        yield Scan(f"dim {axes}D {rest}", kind, set_field("dim", DIM, axes, *sizes), bool(allowed))


def _with_extension(files: ValidFiles, size: int, declared: int) -> bytes:
    data = bytearray(set_field("vox_offset", "f", 352 + size)(files))
    data[348] = 1
    return bytes(data[:352]) + struct.pack("<2i", declared, 6) + bytes(size - 8) + bytes(data[352:])


def affines(kind: str = "affine") -> Iterator[Scan]:
    for bad in (NAN, INF, -INF, 1e30, 1e-30, 0.0):
        for row in ("srow_x", "srow_z"):
            yield Scan(f"{row} {bad}", kind, set_field(row, "4f", *(bad,) * 4))
    singular = [1.0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
    sheared = [1.0, 0.4, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    for name, rows in (("zero", [0.0] * 12), ("singular", singular), ("sheared", sheared), ("NaN", [NAN] * 12)):
        yield Scan(f"sform {name}, no qform", kind, _only_sform(rows))
    for millimetres in (0.001, 1000.0):
        rows = (millimetres * np.eye(3, 4)).ravel().tolist()
        yield Scan(f"voxels of {millimetres} mm", kind, _only_sform(rows))
    for numbers in ((1, 1, 1), (2, 0, 0), (NAN, 0, 0), (INF, 0, 0)):
        yield Scan(f"quaternion {numbers}", kind, set_field("quatern_b", "3f", *numbers))
        yield Scan(f"quaternion {numbers}, no sform", kind, _only_qform("quatern_b", "3f", *numbers))
    for size in (NAN, INF, 0.0, 1e30, 1e-30):
        yield Scan(f"pixdim {size}, no sform", kind, _only_qform("pixdim", "4f", 1, size, size, size))
    yield Scan("qoffset NaN, no sform", kind, _only_qform("qoffset_x", "3f", NAN, 0, 0))
    yield Scan("left and right ambiguous", kind, set_field("srow_x", "f", 1.0))
    yield Scan("sform and qform two millimetres apart", kind, lambda files: _shift(files, 2.0))
    yield Scan("not on the grid of the other modalities", kind, lambda files: _shift(files, 0.01, both=True))
    for name in ("sform_code", "qform_code"):
        yield valid(f"{name} 0", set_field(name, "h", 0))
        yield valid(f"{name} 99", set_field(name, "h", 99))
    yield valid("qfac 0", _with_qfac_0)
    yield valid("pixdim negative", set_field("pixdim", "3f", -8, -8, -24, index=1))


def _only_sform(rows: list[float]) -> Content:
    def content(files: ValidFiles) -> bytes:
        data = bytearray(set_field("qform_code", "h", 0)(files))
        struct.pack_into("<12f", data, FIELDS["srow_x"][1], *rows)
        return bytes(data)

    return content


def _only_qform(name: str, code: str, *values: float) -> Content:
    def content(files: ValidFiles) -> bytes:
        data = bytearray(set_field("sform_code", "h", 0)(files))
        struct.pack_into(f"<{code}", data, FIELDS[name][1], *values)
        return bytes(data)

    return content


def _with_qfac_0(files: ValidFiles) -> bytes:
    """The standard reads 0 as 1, the value of the valid scan."""
    assert struct.unpack_from("<f", files.scan(), FIELDS["pixdim"][1])[0] == 1
    return set_field("pixdim", "f", 0.0)(files)


def _shift(files: ValidFiles, millimetres: float, *, both: bool = False) -> bytes:
    data = bytearray(files.scan())
    for at in [FIELDS["srow_x"][1] + 12, *([FIELDS["qoffset_x"][1]] if both else [])]:
        struct.pack_into("<f", data, at, struct.unpack_from("<f", data, at)[0] + millimetres)
    return bytes(data)
