"""NIfTI files that are truncated, have a flipped byte, are no NIfTI files, or are compressed in odd ways."""

import gzip
import io
import struct
import zlib
from collections.abc import Iterator

from faults.bad_files.base import UNUSUAL, Change, ValidFiles, flip_byte
from faults.bad_files.nifti_scan import FIELDS, Content, Scan, compress, set_field, valid

GZ = ".nii.gz"


def _plain(change: Change) -> Content:
    return lambda files: change(files.scan())


def _compressed(change: Change) -> Content:
    return lambda files: change(compress(files.scan()))


def truncated(kind: str = "truncated") -> Iterator[Scan]:
    for at in (1, 3, *(at for _, at, *_rest in list(FIELDS.values())[1::5]), 347, 348, 350, 352, 353, 1000, -1):
        yield Scan(f"truncated at {at}", kind, _plain(lambda data, at=at: data[:at]))
    for at in (1, 9, 10, 200, -8, -4, -1):
        yield Scan(f"gzip truncated at {at}", kind, _compressed(lambda data, at=at: data[:at]), suffix=GZ)
    for at in (0, 348, 352, 3000):
        content = _plain(lambda data, at=at: compress(data[:at]))
        yield Scan(f"truncated at {at}, then compressed", kind, content, suffix=GZ)


def flipped(kind: str = "flipped byte") -> Iterator[Scan]:
    for at in (0, 2, 11, 300, 1000, -9, -8, -4, -1):  # from -8 on: checksum and length
        yield Scan(f"gzip flipped at {at}", kind, _compressed(lambda data, at=at: flip_byte(data, at)), suffix=GZ)
    for at, what in ((4, "time"), (9, "system")):
        yield valid(f"gzip {what} flipped", _compressed(lambda data, at=at: flip_byte(data, at)), GZ)
    # The highest byte of a number. Compressed files have a checksum; here, only implausible values can be noticed.
    for name, width, indices in (
        ("sizeof_hdr", 4, (0,)), ("dim", 2, (0, 1, 3)), ("datatype", 2, (0,)), ("pixdim", 4, (1, 3)),
        ("vox_offset", 4, (0,)), ("quatern_b", 4, (0, 2)), ("srow_x", 4, (0, 3)), ("srow_z", 4, (2, 3)),
        ("magic", 1, (2,)),
    ):  # fmt: skip
        for index in indices:
            at = FIELDS[name][1] + index * width + width - 1
            yield Scan(f"{name}[{index}] flipped", kind, _plain(lambda data, at=at: flip_byte(data, at, 0x7F)))


OTHER_FILES = {
    "empty": b"", "a zero": b"\0", "zeros": bytes(4000), "0xff": b"\xff" * 4000, "text": b"not a scan\n" * 50,
    "a login page": b"<!DOCTYPE html><html><body>Please sign in</body></html>" * 10,
    "JSON": b'{"error": 404}', "zip": b"PK\x03\x04" + bytes(400), "bzip2": b"BZh91AY&SY" + bytes(400),
    "DICOM": bytes(128) + b"DICM" + bytes(400), "MGH": struct.pack(">7i", 1, 20, 20, 8, 1, 4, 0) + bytes(400),
    "a git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3563\n",
    "a git-annex pointer": b"/annex/objects/SHA256E-s3563--00.nii.gz\n", "NRRD": b"NRRD0004\ntype: short\n",
    "pickle": b"\x80\x04\x95\x10" + bytes(40),
}  # fmt: skip


def wrong_types(kind: str = "wrong file type") -> Iterator[Scan]:
    for number, (name, data) in enumerate(OTHER_FILES.items()):
        suffix = (".nii", GZ)[number % 2]
        yield Scan(f"{name} as {suffix}", kind, lambda _files, data=data: data, suffix=suffix)
    yield valid("compressed, named .nii", _plain(compress))
    yield valid("uncompressed, named .nii.gz", ValidFiles.scan, GZ)
    yield Scan("a zero too long", kind, _plain(lambda data: data + b"\0"))
    yield Scan("twice", kind, _plain(lambda data: 2 * data))
    yield Scan("the header of a pair", kind, lambda files: set_field("magic", "4s", b"ni1")(files)[:348])


BAD_GZIPS = {
    "of gzip": lambda data: compress(compress(data)),
    "twice": lambda data: 2 * compress(data),
    "and text": lambda data: compress(data) + b"garbage",
    "and half a gzip": lambda data: compress(data) + compress(b"x")[:12],
    "with an invalid method": lambda data: b"\x1f\x8b\x07" + compress(data)[3:],
    "with reserved flags": lambda data: b"\x1f\x8b\x08\xe0" + compress(data)[4:],
    "with length 4 GiB in its trailer": lambda data: compress(data)[:-4] + b"\xff" * 4,
    "with a wrong checksum": lambda data: compress(data)[:-8] + compress(data + b"\0")[-8:-4] + compress(data)[-4:],
    "without its header": lambda data: compress(data)[10:],
    "that is zlib": zlib.compress,
    "with an unterminated name": lambda data: b"\x1f\x8b\x08\x08" + compress(data)[4:10] + b"x" * 5000,
}
VALID_GZIPS = {
    "padded with zeros": lambda data: compress(data) + bytes(5000),
    "not compressed": lambda data: gzip.compress(data, 0),
    "in two members, with zeros between": lambda data: compress(data[:900]) + bytes(9) + compress(data[900:]),
    "of one-byte members": lambda data: b"".join(compress(data[at : at + 1]) for at in range(len(data))),
    "with empty members": lambda data: compress(b"") + compress(data) + 3 * compress(b""),
    "with name, comment and extra field": lambda data: _with_optional_fields(compress(data)),
    "by Python's writer": lambda data: _by_python(data),
}


def gzips(kind: str = "gzip") -> Iterator[Scan]:
    for name, change in {**BAD_GZIPS, **VALID_GZIPS}.items():
        is_valid = name in VALID_GZIPS
        yield Scan(f"gzip {name}", UNUSUAL if is_valid else kind, _plain(change), is_valid, GZ)


def _with_optional_fields(plain: bytes) -> bytes:
    return plain[:3] + b"\x1c" + plain[4:10] + struct.pack("<H", 4) + b"ab\0\0" + b"p.nii\0" + b"a word\0" + plain[10:]


def _by_python(data: bytes) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile("a name.nii", "wb", fileobj=stream) as file:
        file.write(data)
    return stream.getvalue()
