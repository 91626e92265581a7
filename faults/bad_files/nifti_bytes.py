"""NIfTI files that are truncated, damaged, of another type, compressed in odd ways, or far larger than they look."""

import gzip
import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from faults.bad_files.base import Change, damages
from faults.bad_files.nifti_scan import GZ, MIB, NAN, Scan, compress, set_field

LARGE = (512, 512, 512)
OTHER_FILES = {
    "empty": b"", "zeros": bytes(4000), "text": b"not a scan\n" * 50, "zip": b"PK\x03\x04" + bytes(400),
    "a login page": b"<!DOCTYPE html><html><body>Please sign in</body></html>" * 10,
    "DICOM": bytes(128) + b"DICM" + bytes(400), "MGH": struct.pack(">7i", 1, 20, 20, 8, 1, 4, 0) + bytes(400),
    "a git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3563\n",
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
    "by Python's writer": lambda data: _by_python(data),
}


def damaged() -> Iterator[Scan]:
    for name, change in damages((1, 40, 347, 352, 353, 1000, -1), ()).items():
        yield Scan(name, change)
        yield Scan(f"{name}, then compressed", _compressed_after(change), suffix=GZ)
    for name, change in damages((1, 9, 10, 200, -8, -4, -1), (0, 2, 11, 300, -9, -8, -4, -1)).items():
        yield Scan(f"gzip {name}", _compressed_before(change), suffix=GZ)
    for name, change in damages((), (4, 9)).items():  # its time and its system
        yield Scan(f"gzip {name}", _compressed_before(change), True, GZ)


def _compressed_before(change: Change) -> Change:
    return lambda data: change(compress(data))


def _compressed_after(change: Change) -> Change:
    return lambda data: compress(change(data))


def wrong_types() -> Iterator[Scan]:
    for number, (name, content) in enumerate(OTHER_FILES.items()):
        suffix = (".nii", GZ)[number % 2]
        yield Scan(f"{name} as {suffix}", lambda _data, content=content: content, suffix=suffix)
    yield Scan("compressed, named .nii", compress, True)
    yield Scan("uncompressed, named .nii.gz", bytes, True, GZ)
    yield Scan("a zero too long", lambda data: data + b"\0")
    yield Scan("twice", lambda data: 2 * data)
    yield Scan("the header of a pair", lambda data: set_field("magic", "4s", b"ni1")(data)[:348])


def gzips() -> Iterator[Scan]:
    for name, change in BAD_GZIPS.items():
        yield Scan(f"gzip {name}", change, suffix=GZ)
    for name, change in VALID_GZIPS.items():
        yield Scan(f"gzip {name}", change, True, GZ)


def _by_python(data: bytes) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile("a name.nii", "wb", fileobj=stream) as file:
        file.write(data)
    return stream.getvalue()


# ---- small files that expand to huge ones, and headers that declare more voxels than memory can hold -----------------


def bombs() -> Iterator[Scan]:
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
        yield Scan(f"bomb {name}", content, suffix=GZ)
    yield Scan("bomb of empty members", lambda data: compress(data) + 400_000 * compress(b""), True, GZ)
    for name, code, size in (("uint8", 2, 1), ("float64", 64, 8)):
        header = lambda data, code=code: _declare(data, LARGE, code)  # noqa: E731
        yield Scan(f"sparse {name}", header, sparse=352 + 2**27 * size)
        yield Scan(f"large {name}, header only", header)
    yield Scan("a sparse terabyte after a scan", bytes, sparse=2**40)
    yield Scan("a sparse terabyte after a gzip", compress, suffix=GZ, sparse=2**40)


def _declare(data: bytes, shape: tuple[int, ...], code: int) -> bytes:
    for field, numbers in {"dim": (3, *shape, 1, 1, 1, 1), "datatype": (code,), "qform_code": (0, 1)}.items():
        data = set_field(field, f"{len(numbers)}h", *numbers)(data)
    return data[:352]


def _all_nan(data: bytes) -> bytes:
    voxels = compress(np.full(MIB // 4, NAN, "<f4").tobytes())
    return compress(_declare(data, (512, 512, 500), 16)) + 500 * voxels
