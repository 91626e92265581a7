"""NIfTI files that are truncated, damaged, of another type, compressed in odd ways, or far larger than they look."""

import gzip
import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from faults.bad_files.base import Change, damages
from faults.bad_files.nifti_scan import FIELDS, GZ, MIB, NAN, Scan, compress, set_field, valid

LARGE = (512, 512, 512)
DAMAGED = "damaged NIfTI file"
OTHER_FILES = {
    "empty": b"", "zeros": bytes(4000), "text": b"not a scan\n" * 50, "zip": b"PK\x03\x04" + bytes(400),
    "a login page": b"<!DOCTYPE html><html><body>Please sign in</body></html>" * 10,
    "DICOM": bytes(128) + b"DICM" + bytes(400), "MGH": struct.pack(">7i", 1, 20, 20, 8, 1, 4, 0) + bytes(400),
    "a git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3563\n",
}  # fmt: skip
HIGHEST_BYTES = {  # of numbers in the header: there, only implausible values can be noticed
    "sizeof_hdr": 3, "dim": 1, "datatype": 1, "pixdim": 7, "vox_offset": 3, "quatern_b": 3, "srow_x": 3, "magic": 2,
}  # fmt: skip
BAD_GZIPS: dict[str, Change] = {
    "of gzip": lambda data: compress(compress(data)),
    "twice": lambda data: 2 * compress(data),
    "and text": lambda data: compress(data) + b"garbage",
    "and half a gzip": lambda data: compress(data) + compress(b"x")[:12],
    "with an invalid method": lambda data: b"\x1f\x8b\x07" + compress(data)[3:],
    "with length 4 GiB in its trailer": lambda data: compress(data)[:-4] + b"\xff" * 4,
    "with a wrong checksum": lambda data: compress(data)[:-8] + compress(data + b"\0")[-8:-4] + compress(data)[-4:],
    "without its header": lambda data: compress(data)[10:],
    "that is zlib": zlib.compress,
    "with an unterminated name": lambda data: b"\x1f\x8b\x08\x08" + compress(data)[4:10] + b"x" * 5000,
}
VALID_GZIPS: dict[str, Change] = {
    "padded with zeros": lambda data: compress(data) + bytes(5000),
    "not compressed": lambda data: gzip.compress(data, 0),
    "in two members, with zeros between": lambda data: compress(data[:900]) + bytes(9) + compress(data[900:]),
    "of one-byte members": lambda data: b"".join(compress(data[at : at + 1]) for at in range(len(data))),
    "with empty members": lambda data: compress(b"") + compress(data) + 3 * compress(b""),
    "with name, comment and extra field": lambda data: _with_optional_fields(compress(data)),
    "by Python's writer": lambda data: _by_python(data),
}


def damaged() -> Iterator[Scan]:
    for name, change in damages((1, 40, 347, 352, 353, 1000, -1), ()).items():
        yield Scan(name, DAMAGED, change)
        yield Scan(f"{name}, then compressed", DAMAGED, _compressed_after(change), suffix=GZ)
    for name, change in damages((1, 9, 10, 200, -8, -4, -1), (0, 2, 11, 300, -9, -8, -4, -1)).items():
        yield Scan(f"gzip {name}", DAMAGED, _compressed_before(change), suffix=GZ)
    for name, change in damages((), (4, 9)).items():  # its time and its system
        yield valid(f"gzip {name}", _compressed_before(change), GZ)
    for field, offset in HIGHEST_BYTES.items():
        (change,) = damages((), (FIELDS[field][1] + offset,)).values()
        yield Scan(f"{field} flipped", DAMAGED, change)


def _compressed_before(change: Change) -> Change:
    return lambda data: change(compress(data))


def _compressed_after(change: Change) -> Change:
    return lambda data: compress(change(data))


def wrong_types(kind: str = DAMAGED) -> Iterator[Scan]:
    for number, (name, content) in enumerate(OTHER_FILES.items()):
        suffix = (".nii", GZ)[number % 2]
        yield Scan(f"{name} as {suffix}", kind, lambda _data, content=content: content, suffix=suffix)
    yield valid("compressed, named .nii", compress)
    yield valid("uncompressed, named .nii.gz", bytes, GZ)
    yield Scan("a zero too long", kind, lambda data: data + b"\0")
    yield Scan("twice", kind, lambda data: 2 * data)
    yield Scan("the header of a pair", kind, lambda data: set_field("magic", "4s", b"ni1")(data)[:348])


def gzips() -> Iterator[Scan]:
    for name, change in BAD_GZIPS.items():
        yield Scan(f"gzip {name}", DAMAGED, change, suffix=GZ)
    for name, change in VALID_GZIPS.items():
        yield valid(f"gzip {name}", change, GZ)


def _with_optional_fields(plain: bytes) -> bytes:
    return plain[:3] + b"\x1c" + plain[4:10] + struct.pack("<H", 4) + b"ab\0\0" + b"p.nii\0" + b"a word\0" + plain[10:]


def _by_python(data: bytes) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile("a name.nii", "wb", fileobj=stream) as file:
        file.write(data)
    return stream.getvalue()


# ---- small files that expand to huge ones, and headers that declare more voxels than memory can hold -----------------


def bombs(kind: str = "decompression bomb") -> Iterator[Scan]:
    many, tiny = compress(bytes(MIB)), compress(b"x")
    contents: dict[str, Change] = {
        "after a scan": lambda data: compress(data) + 10_000 * many,
        "of one-byte members": lambda data: compress(data) + 400_000 * tiny,
        "of one-byte members, declared": lambda data: compress(_declare(data, (512, 512, 4), 2)) + 400_000 * tiny,
        "of uint8": lambda data: compress(_declare(data, LARGE, 2)) + 128 * many,
        "of float64": lambda data: compress(_declare(data, LARGE, 64)) + 1024 * many,
        "of NaN": _all_nan,
        "in one gzip": lambda data: compress(_declare(data, LARGE, 4) + bytes(256 * MIB)),
        "of an extension": lambda data: (
            compress(set_field("vox_offset", "f", 60 * MIB)(data)[:352]) + 60 * compress(bytes(MIB))
        ),
    }
    for name, content in contents.items():
        yield Scan(f"bomb {name}", kind, content, suffix=GZ)
    yield Scan("bomb of empty members", kind, lambda data: compress(data) + 400_000 * compress(b""), True, GZ)
    for name, code, size in (("uint8", 2, 1), ("float64", 64, 8)):
        header = lambda data, code=code: _declare(data, LARGE, code)  # noqa: E731
        yield Scan(f"sparse {name}", kind, header, sparse=352 + 2**27 * size)
        yield Scan(f"large {name}, header only", kind, header)
    yield Scan("a sparse terabyte after a scan", kind, bytes, sparse=2**40)
    yield Scan("a sparse terabyte after a gzip", kind, compress, suffix=GZ, sparse=2**40)


def _declare(data: bytes, shape: tuple[int, ...], code: int) -> bytes:
    for field, numbers in {"dim": (3, *shape, 1, 1, 1, 1), "datatype": (code,), "qform_code": (0, 1)}.items():
        data = set_field(field, f"{len(numbers)}h", *numbers)(data)
    return data[:352]


def _all_nan(data: bytes) -> bytes:
    voxels = compress(np.full(MIB // 4, NAN, "<f4").tobytes())
    return compress(_declare(data, (512, 512, 500), 16)) + 500 * voxels
