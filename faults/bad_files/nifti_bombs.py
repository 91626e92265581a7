"""Small files that expand to huge ones, and headers that declare more voxels than memory can hold."""

import struct
from collections.abc import Iterator

import numpy as np

from faults.bad_files.base import ValidFiles
from faults.bad_files.nifti_scan import DIM, FIELDS, MIB, NAN, Content, Scan, compress, set_field

LARGE = (512, 512, 512)
GZ = ".nii.gz"


def bombs(kind: str = "decompression bomb") -> Iterator[Scan]:
    many = compress(bytes(MIB))

    def declared(code: int, count: int) -> Content:
        return lambda files: compress(_declare(files, LARGE, code)) + count * many

    def after_scan(member: bytes, count: int) -> Content:
        return lambda files: compress(files.scan()) + count * member

    yield Scan("bomb after a scan", kind, after_scan(many, 10_000), suffix=GZ)
    yield Scan("bomb of empty members", kind, after_scan(compress(b""), 400_000), True, GZ)
    yield Scan("bomb of one-byte members", kind, after_scan(compress(b"x"), 400_000), suffix=GZ)
    yield Scan("bomb of one-byte members, declared", kind, _one_byte_members, suffix=GZ)
    for name, code, size in (("uint8", 2, 1), ("float64", 64, 8)):
        yield Scan(f"bomb of {name}", kind, declared(code, 128 * size), suffix=GZ)
        header = _header(code)
        yield Scan(f"sparse {name}", kind, header, sparse=352 + 2**27 * size)
        yield Scan(f"large {name}, header only", kind, header)
    yield Scan("bomb of NaN", kind, _all_nan, suffix=GZ)
    yield Scan("bomb in one gzip", kind, lambda f: compress(_declare(f, LARGE, 4) + bytes(256 * MIB)), suffix=GZ)
    yield Scan("a sparse terabyte after a scan", kind, ValidFiles.scan, sparse=2**40)
    yield Scan("a sparse terabyte after a gzip", kind, after_scan(b"", 0), suffix=GZ, sparse=2**40)
    yield Scan("bomb of an extension", kind, _huge_extension, suffix=GZ)


def _header(code: int) -> Content:
    return lambda files: _declare(files, LARGE, code)


def _declare(files: ValidFiles, shape: tuple[int, ...], code: int) -> bytes:
    data = bytearray(set_field("dim", DIM, 3, *shape, 1, 1, 1, 1)(files)[:352])
    struct.pack_into("<h", data, FIELDS["datatype"][1], code)
    struct.pack_into("<2h", data, FIELDS["qform_code"][1], 0, 1)
    return bytes(data)


def _one_byte_members(files: ValidFiles) -> bytes:
    return compress(_declare(files, (512, 512, 4), 2)) + 400_000 * compress(b"x")


def _all_nan(files: ValidFiles) -> bytes:
    voxels = compress(np.full(MIB // 4, NAN, "<f4").tobytes())
    return compress(_declare(files, (512, 512, 500), 16)) + 500 * voxels


def _huge_extension(files: ValidFiles) -> bytes:
    data = bytearray(files.scan()[:352])
    struct.pack_into("<f", data, FIELDS["vox_offset"][1], 60 * MIB)
    return compress(bytes(data)) + 60 * compress(bytes(MIB))
