"""What can be wrong with the bytes of a NIfTI file, and what is unusual and right."""

import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from bad_inputs import AFFINE, SHAPE, Case, Good, prepare_files, segment_files

Change = Callable[[Good], bytes]
FIELDS = nib.Nifti1Header.template_dtype.fields
NAN, INF = float("nan"), float("inf")
SHAPE_CODE, SIZE = "8h", math.prod(SHAPE)
MIB = 1 << 20


@dataclass(frozen=True)
class Scan:
    """A FLAIR that is not as it should be, or does not seem so."""

    name: str
    kind: str
    content: Change
    right: bool = False
    ending: str = ".nii"
    sparse: int = 0  # the file is stretched to so many bytes, without taking room


def cases() -> Iterator[Case]:
    """Every scan is prepared, and some are segmented too: one reader serves all commands."""
    scans = [*cut(), *flipped(), *headers(), *affines(), *types(), *strangers(), *gzips(), *bombs(), *voxels()]
    for number, scan in enumerate(scans):
        named = "flair" if "faint" in scan.name else f"p_flair{scan.ending}"
        yield Case(f"prepare {scan.name}", scan.kind, _prepared(scan), scan.right, named)
        if number % (3 if scan.right else 8) == 0 or scan.kind == "bomb":
            yield Case(f"segment {scan.name}", scan.kind, _segmented(scan), scan.right, named)


def _segmented(scan: Scan) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        _write(folder, scan, good)
        return segment_files(folder, good, f"p_flair{scan.ending}")

    return make


def _prepared(scan: Scan) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        (folder / "src").mkdir()
        _write(folder / "src", scan, good)
        return prepare_files(folder, good)

    return make


def _write(folder: Path, scan: Scan, good: Good) -> None:
    path = folder / f"p_flair{scan.ending}"
    path.write_bytes(scan.content(good))
    if scan.sparse:
        os.truncate(path, scan.sparse)


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def patched(at: int, code: str, *values: float) -> Change:
    def change(good: Good) -> bytes:
        data = bytearray(good.scan())
        struct.pack_into(f"<{code}", data, at, *values)
        return bytes(data)

    return change


def field(name: str, code: str, *values: float, index: int = 0) -> Change:
    return patched(FIELDS[name][1] + index * struct.calcsize(code[-1]), code, *values)


# ---- cut short, flipped ----------------------------------------------------------------------------------------------


def cut(kind: str = "cut short") -> Iterator[Scan]:
    for name, (_, at, *_rest) in FIELDS.items():
        yield Scan(f"cut before {name}", kind, lambda good, at=at: good.scan()[:at])
    for at in (1, 2, 3, 347, 348, 350, 352, 353, 1000):
        yield Scan(f"cut at {at}", kind, lambda good, at=at: good.scan()[:at])
    yield Scan("cut of its last byte", kind, lambda good: good.scan()[:-1])
    for at in (1, 2, 3, 9, 10, 11, 18, 200, 500):
        yield Scan(f"gzip cut at {at}", kind, lambda good, at=at: packed(good.scan())[:at], ending=".nii.gz")
    for less in range(1, 9):
        yield Scan(f"gzip cut of {less}", kind, lambda good, less=less: packed(good.scan())[:-less], ending=".nii.gz")
    for at in (0, 348, 352, 3000):
        yield Scan(f"cut at {at}, then packed", kind, lambda good, at=at: packed(good.scan()[:at]), ending=".nii.gz")


def flipped(kind: str = "flipped byte") -> Iterator[Scan]:
    for share in np.linspace(0.02, 0.98, 16):
        yield Scan(
            f"gzip byte flipped at {share:.0%}",
            kind,
            lambda good, share=share: _flip(packed(good.scan()), share),
            ending=".nii.gz",
        )
    for back in range(1, 9):  # its checksum and its length
        yield Scan(
            f"gzip trailer flipped at -{back}",
            kind,
            lambda good, back=back: _flip_at(packed(good.scan()), -back),
            ending=".nii.gz",
        )
    for at, what, right in ((0, "magic", 0), (1, "magic", 0), (2, "method", 0), (4, "time", 1), (9, "system", 1)):
        yield Scan(
            f"gzip {what} flipped at {at}",
            kind,
            lambda good, at=at: _flip_at(packed(good.scan()), at),
            bool(right),
            ".nii.gz",
        )
    # The highest byte of a number. What is packed is guarded by a checksum; here, only sense is.
    for name, bytes_in, count in (
        ("sizeof_hdr", 4, 1), ("dim", 2, 4), ("datatype", 2, 1), ("pixdim", 4, 3), ("vox_offset", 4, 1),
        ("quatern_b", 4, 1), ("quatern_c", 4, 1), ("quatern_d", 4, 1), ("qoffset_x", 4, 1), ("qoffset_y", 4, 1),
        ("qoffset_z", 4, 1), ("srow_x", 4, 4), ("srow_y", 4, 4), ("srow_z", 4, 4), ("magic", 1, 3),
    ):  # fmt: skip
        for index in range(name == "pixdim", count + (name == "pixdim")):
            at = FIELDS[name][1] + index * bytes_in + bytes_in - 1
            yield Scan(f"{name}[{index}] flipped", kind, lambda good, at=at: _flip_at(good.scan(), at, 0x7F))


def _flip(data: bytes, share: float) -> bytes:
    return _flip_at(data, 10 + int(share * (len(data) - 18)))


def _flip_at(data: bytes, at: int, by: int = 0x55) -> bytes:
    changed = bytearray(data)
    changed[at] ^= by
    return bytes(changed)


# ---- headers ---------------------------------------------------------------------------------------------------------


def headers(kind: str = "header") -> Iterator[Scan]:
    for value in (0, 347, 349, 540, -348, 0x5C010000):
        yield Scan(f"sizeof_hdr {value}", kind, field("sizeof_hdr", "i", value))
    for axes in (-1, 0, 1, 2, 8, 9, 256, 32767, -32768):
        yield Scan(f"dim[0] {axes}", kind, field("dim", "h", axes))
    for size in (0, -1, -20, 1, 19, 21, 20 * 256, 32767):
        yield Scan(f"dim[1] {size}", kind, field("dim", "h", size, index=1))
    for shape in ((32767,) * 3, (2000,) * 3, (513, 512, 512), (-20, -20, 8), (20, 20, 1), (20, 1, 1)):
        yield Scan(f"dim {shape}", kind, field("dim", SHAPE_CODE, 3, *shape, 1, 1, 1, 1))
    for axes, rest, right in ((4, (1,), True), (5, (1, 1), True), (7, (1,) * 4, True), (4, (2,), False),
                              (4, (0,), False), (4, (-1,), False), (5, (1, 3), False), (7, (32767,) * 4,
                              False)):  # fmt: skip
        sizes = (*SHAPE, *rest, *(1,) * (4 - len(rest)))
        yield Scan(f"dim {axes}D {rest}", kind, field("dim", SHAPE_CODE, axes, *sizes), right)
    for offset, right in ((0, True), (-0.0, True), (NAN, False), (INF, False), (-352, False), (1, False), (348, False),
                          (351, False), (353, False), (368, False), (1e9, False), (3e38, False)):  # fmt: skip
        yield Scan(f"vox_offset {offset}", kind, field("vox_offset", "f", offset), right)
    for slope, inter, right in ((0, 5, True), (NAN, NAN, True), (1, 0, True), (INF, 0, False), (-INF, 0, False),
                                (1, NAN, False), (1, INF, False), (3e38, 0, False), (-1, 0, False)):  # fmt: skip
        yield Scan(f"scl {slope} {inter}", kind, field("scl_slope", "2f", slope, inter), right)
    for magic, right in ((b"ni1", False), (b"n+2", False), (b"", False), (b"N+1", False), (b"n+3", False)):
        yield Scan(f"magic {magic!r}", kind, field("magic", "4s", magic), right)
    for units, right in ((0, True), (1, False), (3, False), (10, True), (2 | 64, True)):
        yield Scan(f"xyzt_units {units}", kind, field("xyzt_units", "B", units), right)
    for name, code, value in (("bitpix", "h", 8), ("bitpix", "h", -1), ("extents", "i", -1), ("slice_code", "b", 99),
                              ("intent_code", "h", 32767), ("cal_max", "f", NAN), ("toffset", "f", INF)):  # fmt: skip
        yield Scan(f"{name} {value}", "unusual and right", field(name, code, value), True)
    yield Scan("descrip not text", "unusual and right", field("descrip", "8s", b"\xff\xfe\x00\x9f"), True)
    for size in (16, 4096, 8 * MIB):
        yield Scan(f"extension of {size}", "unusual and right", lambda good, size=size: _extended(good, size), True)
    yield Scan(
        "extension of a length that lies", "unusual and right", lambda good: _extended(good, 64, 2**31 - 1), True
    )


def _extended(good: Good, size: int, said: int | None = None) -> bytes:
    data = bytearray(field("vox_offset", "f", 352 + size)(good))
    data[348] = 1
    return bytes(data[:352]) + struct.pack("<2i", said or size, 6) + bytes(size - 8) + bytes(data[352:])


def affines(kind: str = "affine") -> Iterator[Scan]:
    for bad in (NAN, INF, -INF, 1e30, 1e-30, 0.0):
        for row in ("srow_x", "srow_z"):
            yield Scan(f"{row} {bad}", kind, field(row, "4f", *(bad,) * 4))
    singular = [1.0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
    sheared = [1.0, 0.4, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    for name, rows in (("zero", [0.0] * 12), ("singular", singular), ("sheared", sheared), ("NaN", [NAN] * 12)):
        yield Scan(f"sform {name}, no qform", kind, _only_sform(rows))
    for millimetres in (0.001, 1000.0):
        rows = (millimetres * np.eye(3, 4)).ravel().tolist()
        yield Scan(f"voxels of {millimetres} mm", kind, _only_sform(rows))
    for numbers in ((1, 1, 1), (2, 0, 0), (NAN, 0, 0), (INF, 0, 0)):
        yield Scan(f"quaternion {numbers}", kind, field("quatern_b", "3f", *numbers))
        yield Scan(f"quaternion {numbers}, no sform", kind, _only_qform("quatern_b", "3f", *numbers))
    for size in (NAN, INF, 0.0, 1e30, 1e-30):
        yield Scan(f"pixdim {size}, no sform", kind, _only_qform("pixdim", "4f", 1, size, size, size))
    yield Scan("qoffset NaN, no sform", kind, _only_qform("qoffset_x", "3f", NAN, 0, 0))
    yield Scan("left and right in doubt", kind, field("srow_x", "f", 1.0))
    yield Scan("two millimetres apart", kind, lambda good: _moved(good, 2.0))
    yield Scan("not on the others' grid", kind, lambda good: _moved(good, 0.01, both=True))
    for name in ("sform_code", "qform_code"):
        yield Scan(f"{name} 0", "unusual and right", field(name, "h", 0), True)
        yield Scan(f"{name} 99", "unusual and right", field(name, "h", 99), True)
    yield Scan("qfac 0", "unusual and right", lambda good: _with_qfac(good, 0.0), True)
    yield Scan("pixdim negative", "unusual and right", field("pixdim", "3f", -1, -1, -3, index=1), True)


def _only_sform(rows: list[float]) -> Change:
    def change(good: Good) -> bytes:
        data = bytearray(field("qform_code", "h", 0)(good))
        struct.pack_into("<12f", data, FIELDS["srow_x"][1], *rows)
        return bytes(data)

    return change


def _only_qform(name: str, code: str, *values: float) -> Change:
    def change(good: Good) -> bytes:
        data = bytearray(field("sform_code", "h", 0)(good))
        struct.pack_into(f"<{code}", data, FIELDS[name][1], *values)
        return bytes(data)

    return change


def _with_qfac(good: Good, qfac: float) -> bytes:
    """The standard reads 0 as 1, which is what it is here."""
    data = good.scan()
    assert struct.unpack_from("<f", data, FIELDS["pixdim"][1])[0] == 1
    return field("pixdim", "f", qfac)(good)


def _moved(good: Good, millimetres: float, *, both: bool = False) -> bytes:
    data = bytearray(good.scan())
    for at in [FIELDS["srow_x"][1] + 12, *([FIELDS["qoffset_x"][1]] if both else [])]:
        struct.pack_into("<f", data, at, struct.unpack_from("<f", data, at)[0] + millimetres)
    return bytes(data)


# ---- types and voxels ------------------------------------------------------------------------------------------------


def types(kind: str = "type of voxels") -> Iterator[Scan]:
    for code in (-1, 0, 1, 3, 5, 32, 128, 255, 1536, 1792, 2048, 2304, 32767, 2, 64, 8):
        yield Scan(f"datatype {code}", kind, field("datatype", "h", code))
    for dtype in ("complex64", "complex128"):
        yield Scan(f"{dtype} indeed", kind, lambda good, dtype=dtype: saved(good.voxels().astype(dtype)))
    colours = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    yield Scan("RGB indeed", kind, lambda good: saved(good.voxels().astype("u1").astype(colours)))
    yield Scan("float128 indeed", kind, lambda good: field("datatype", "2h", 1536, 128)(good)[:352] + bytes(16 * SIZE))
    for dtype in ("uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", ">i2", ">f4", ">f8", ">u2"):
        yield Scan(f"{dtype}", "unusual and right", lambda good, dtype=dtype: saved(good.voxels().astype(dtype)), True)
    for form in (nib.Nifti2Image, nib.Nifti1Image):
        for order in "<>":
            yield Scan(
                f"{form.__name__} {order}",
                "unusual and right",
                lambda good, form=form, order=order: saved(good.voxels().astype(f"{order}i2"), form),
                True,
            )
    for slope, inter in ((2.0, 0.0), (0.5, 0.0), (1.0, 100.0), (-1.0, 0.0), (1.0, -32000.0)):
        yield Scan(
            f"stored by {slope} and {inter}",
            "unusual and right",
            lambda good, slope=slope, inter=inter: _scaled(good, slope, inter),
            True,
        )
    yield from _second_version()


def _second_version(kind: str = "NIfTI-2") -> Iterator[Scan]:
    def second(good: Good) -> bytes:
        return saved(good.voxels(), nib.Nifti2Image)

    fields = nib.Nifti2Header.template_dtype.fields
    for name, (_, at, *_rest) in fields.items():
        yield Scan(f"NIfTI-2 cut before {name}", kind, lambda good, at=at: second(good)[:at])
    for value in (2**40, 2**62, -(2**63), 0, -1, 21):
        yield Scan(f"NIfTI-2 dim[1] {value}", kind, _patched_second(second, fields["dim"][1] + 8, value))
    for value in (-1, 0x7FFF, 2**63 - 1, -(2**63)):
        yield Scan(f"NIfTI-2 dim[0] {value}", kind, _patched_second(second, fields["dim"][1], value))
        yield Scan(f"NIfTI-2 vox_offset {value}", kind, _patched_second(second, fields["vox_offset"][1], value))


def _patched_second(second: Change, at: int, value: int) -> Change:
    return lambda good: second(good)[:at] + struct.pack("<q", value) + second(good)[at + 8 :]


def _scaled(good: Good, slope: float, inter: float) -> bytes:
    """Other numbers in the file, which its header turns into the same voxels."""
    data = bytearray(saved(((good.voxels() - inter) / slope).astype(np.float32)))
    struct.pack_into("<2f", data, FIELDS["scl_slope"][1], slope, inter)
    return bytes(data)


def saved(array: np.ndarray, form: type = nib.Nifti1Image) -> bytes:
    """By nibabel, on the good scan's grid, in the byte order of `array`."""
    header = form.header_class(endianness=array.dtype.byteorder if array.dtype.byteorder in "<>" else "<")
    header.set_data_dtype(array.dtype)
    image = form(array, AFFINE, header, dtype=array.dtype)
    image.set_qform(AFFINE, code=1)
    image.set_sform(AFFINE, code=1)
    image.header.set_xyzt_units("mm")
    stream = io.BytesIO()
    image.to_stream(stream)
    return stream.getvalue()


def voxels(kind: str = "voxels") -> Iterator[Scan]:
    def changed(change: Callable[[np.ndarray], np.ndarray]) -> Change:
        return lambda good: saved(change(good.voxels().astype(np.float32)))

    def one(value: float) -> Change:
        return changed(
            lambda array: np.where(np.arange(array.size).reshape(array.shape) == 7, value, array).astype("f4")
        )

    for value in (NAN, INF, -INF):
        yield Scan(f"one voxel {value}", kind, one(value))
        yield Scan(f"all voxels {value}", kind, changed(lambda array, value=value: np.full_like(array, value)))
    for value in (0.0, 7.0, -3.0):
        yield Scan(f"all voxels {value}", kind, changed(lambda array, value=value: np.full_like(array, value)))
    yield Scan("all below 0", kind, changed(lambda array: -array - 1))
    yield Scan("voxels beyond float32", kind, lambda good: saved(good.voxels() * 1e300))
    yield Scan("voxels too small for float32", kind, lambda good: saved(good.voxels() * 1e-300))
    yield Scan("voxels too faint to divide by", kind, changed(lambda array: array * 2.0**-147))
    yield Scan("voxels of a billion", "unusual and right", changed(lambda array: array * 2**20), True)
    yield Scan("voxels of a billionth", "unusual and right", changed(lambda array: array / 2**20), True)
    yield Scan("voxels near float32's least", "unusual and right", changed(lambda array: array * 2.0**-134), True)
    yield Scan("voxels near float32's most", "unusual and right", changed(lambda array: array * 2.0**117), True)


# ---- other files, other packings -------------------------------------------------------------------------------------


def strangers(kind: str = "another kind of file") -> Iterator[Scan]:
    contents = {
        "empty": b"", "a zero": b"\0", "zeros": bytes(4000), "0xff": b"\xff" * 4000, "text": b"not a scan\n" * 50,
        "a page of a log-in": b"<!DOCTYPE html><html><body>Please sign in</body></html>" * 10,
        "JSON": b'{"error": 404}', "PNG": b"\x89PNG\r\n\x1a\n" + bytes(400), "zip": b"PK\x03\x04" + bytes(400),
        "bzip2": b"BZh91AY&SY" + bytes(400), "xz": b"\xfd7zXZ\0" + bytes(400), "zstd": b"\x28\xb5\x2f\xfd" + bytes(400),
        "DICOM": bytes(128) + b"DICM" + bytes(400), "MGH": struct.pack(">7i", 1, 20, 20, 8, 1, 4, 0) + bytes(400),
        "a pointer of LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3563\n",
        "a pointer of annex": b"/annex/objects/SHA256E-s3563--00.nii.gz\n", "NRRD": b"NRRD0004\ntype: short\n",
        "pickle": b"\x80\x04\x95\x10" + bytes(40), "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(400),
    }  # fmt: skip
    for name, content in contents.items():
        for ending in (".nii", ".nii.gz"):
            yield Scan(f"{name} as {ending}", kind, lambda _good, content=content: content, ending=ending)
    yield Scan("packed but not called so", "unusual and right", lambda good: packed(good.scan()), True)
    yield Scan("called packed but not", "unusual and right", Good.scan, True, ".nii.gz")
    yield Scan("one byte too many", kind, lambda good: good.scan() + b"\1")
    yield Scan("a zero too many", kind, lambda good: good.scan() + b"\0")
    yield Scan("twice", kind, lambda good: 2 * good.scan())
    yield Scan("the header of a pair", kind, lambda good: field("magic", "4s", b"ni1")(good)[:348])


def gzips(kind: str = "gzip") -> Iterator[Scan]:
    def add(name: str, change: Callable[[bytes], bytes], *, right: bool = False) -> Scan:
        group = "unusual and right" if right else kind
        return Scan(f"gzip {name}", group, lambda good: change(good.scan()), right, ".nii.gz")

    yield add("of gzip", lambda data: packed(packed(data)))
    yield add("twice", lambda data: 2 * packed(data))
    yield add("and text", lambda data: packed(data) + b"garbage")
    yield add("and half a gzip", lambda data: packed(data) + packed(b"x")[:12])
    yield add("and a byte more inside", lambda data: packed(data + b"\0"))
    yield add("with a method that is none", lambda data: b"\x1f\x8b\x07" + packed(data)[3:])
    yield add("with reserved flags", lambda data: b"\x1f\x8b\x08\xe0" + packed(data)[4:])
    yield add("of length 0 by its end", lambda data: packed(data)[:-4] + bytes(4))
    yield add("of length 4 GiB by its end", lambda data: packed(data)[:-4] + b"\xff" * 4)
    yield add("of another's checksum", lambda data: packed(data)[:-8] + packed(data + b"\0")[-8:-4] + packed(data)[-4:])
    yield add("without its header", lambda data: packed(data)[10:])
    yield add("that is zlib", zlib.compress)
    yield add("with a name that has no end", lambda data: b"\x1f\x8b\x08\x08" + packed(data)[4:10] + b"x" * 5000)
    yield add("padded with zeros", lambda data: packed(data) + bytes(5000), right=True)
    yield add("not compressed", lambda data: gzip.compress(data, 0), right=True)
    yield add("compressed most", lambda data: gzip.compress(data, 9), right=True)
    yield add("in two", lambda data: packed(data[:1000]) + packed(data[1000:]), right=True)
    yield add("in two, with zeros between", lambda data: packed(data[:900]) + bytes(9) + packed(data[900:]), right=True)
    yield add("by the byte", lambda data: b"".join(packed(data[at : at + 1]) for at in range(len(data))), right=True)
    yield add("with empty ones around", lambda data: packed(b"") + packed(data) + 3 * packed(b""), right=True)
    yield add("with name, comment and more", _decorated, right=True)
    yield add("from Python's own writer", _named, right=True)


def _decorated(data: bytes) -> bytes:
    plain = packed(data)
    return plain[:3] + b"\x1c" + plain[4:10] + struct.pack("<H", 4) + b"ab\0\0" + b"p.nii\0" + b"a word\0" + plain[10:]


def _named(data: bytes) -> bytes:
    stream = io.BytesIO()
    with gzip.GzipFile("a name.nii", "wb", fileobj=stream) as file:
        file.write(data)
    return stream.getvalue()


def bombs(kind: str = "bomb") -> Iterator[Scan]:
    many = packed(bytes(MIB))
    large = (512, 512, 512)

    def declared(shape: tuple[int, ...], code: int, count: int) -> Change:
        return lambda good: packed(_declaring(good, shape, code)) + count * many

    yield Scan("bomb behind a scan", kind, lambda good: packed(good.scan()) + 10_000 * many, ending=".nii.gz")
    yield Scan("bomb of empty gzips", kind, lambda good: packed(good.scan()) + 400_000 * packed(b""), True, ".nii.gz")
    yield Scan(
        "bomb of gzips of a byte", kind, lambda good: packed(good.scan()) + 400_000 * packed(b"x"), ending=".nii.gz"
    )
    yield Scan("bomb of gzips of a byte, declared", kind, _crumbs, ending=".nii.gz")
    for name, code, size in (("uint8", 2, 1), ("int16", 4, 2), ("float32", 16, 4), ("float64", 64, 8)):
        yield Scan(f"bomb of {name}", kind, declared(large, code, 128 * size), ending=".nii.gz")
        yield Scan(
            f"hole of {name}", kind, lambda good, code=code: _declaring(good, large, code), sparse=352 + 2**27 * size
        )
        yield Scan(f"large {name}, not there", kind, lambda good, code=code: _declaring(good, large, code))
    yield Scan("bomb of NaN", kind, _of_nan, ending=".nii.gz")
    yield Scan(
        "bomb in one gzip", kind, lambda good: packed(_declaring(good, large, 4) + bytes(256 * MIB)), ending=".nii.gz"
    )
    yield Scan("a hole of a terabyte behind a scan", kind, Good.scan, sparse=2**40)
    yield Scan(
        "a hole of a terabyte behind a gzip", kind, lambda good: packed(good.scan()), ending=".nii.gz", sparse=2**40
    )
    yield Scan("bomb of an extension", kind, _bomb_of_extension, ending=".nii.gz")


def _declaring(good: Good, shape: tuple[int, ...], code: int) -> bytes:
    data = bytearray(field("dim", SHAPE_CODE, 3, *shape, 1, 1, 1, 1)(good)[:352])
    struct.pack_into("<h", data, FIELDS["datatype"][1], code)
    struct.pack_into("<2h", data, FIELDS["qform_code"][1], 0, 1)
    return bytes(data)


def _crumbs(good: Good) -> bytes:
    return packed(_declaring(good, (512, 512, 4), 2)) + 400_000 * packed(b"x")


def _of_nan(good: Good) -> bytes:
    some = packed(np.full(MIB // 4, NAN, "<f4").tobytes())
    return packed(_declaring(good, (512, 512, 500), 16)) + 500 * some


def _bomb_of_extension(good: Good) -> bytes:
    data = bytearray(good.scan()[:352])
    struct.pack_into("<f", data, FIELDS["vox_offset"][1], 60 * MIB)
    return packed(bytes(data)) + 60 * packed(bytes(MIB))
