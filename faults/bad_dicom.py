"""What can be wrong with a DICOM study, in a folder or a zip, and what is unusual and right."""

import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydicom
from bad_folders import PLACES, Change
from bad_inputs import Case, Good, flip, segment
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)


def cases() -> Iterator[Case]:
    yield from dicom()
    yield from zips()


def dicom(kind: str = "DICOM") -> Iterator[Case]:
    for at in (0, 1, 100, 128, 131, 132, 133, 140, 150, 200, 300, 400, 500, 600, 700, 800, 900, -1, -100, -400):
        yield _one_file(f"cut at {at}", kind, lambda data, at=at: data[:at])
    for at in (128, 131, 132, 136, 144):
        yield _one_file(f"flipped at {at}", kind, lambda data, at=at: flip(data, at))
    for name, content in {
        "empty": b"",
        "text": b"no slice\n",
        "zeros": bytes(999),
        "NIfTI": b"\x5c\1\0\0" + bytes(348),
    }.items():
        yield _one_file(f"slice {name}", kind, lambda _data, content=content: content)
    for name, tags in _bad_tags():
        yield Case(f"segment DICOM {name}", kind, _tagged(tags, only_one=name.startswith("one slice")), names="study")
    yield Case(
        "segment DICOM a slice missing", kind, _study(lambda place: (place / "S1_003.dcm").unlink()), names="study"
    )
    yield Case(
        "segment DICOM a slice twice",
        kind,
        _study(lambda place: shutil.copy(place / "S1_003.dcm", place / "x.dcm")),
        names="S1_003",
    )
    yield Case(
        "segment DICOM a series missing",
        kind,
        _study(lambda place: [one.unlink() for one in place.glob("S1*")]),
        names="study",
    )
    yield Case(
        "segment DICOM a series alone",
        kind,
        _study(lambda place: [one.unlink() for one in place.glob("S[234]*")]),
        names="study",
    )
    for name, what in PLACES.items():
        if name not in ("missing", "empty"):
            yield Case(
                f"segment DICOM beside {name}",
                "unusual and right",
                _study(lambda place, what=what: what(place / "x.dcm")),
                True,
                like="study",
            )
    for name, change in {
        "beside text": lambda place: (place / "read me.txt").write_text("x"),
        "beside a DICOMDIR": lambda place: (place / "DICOMDIR").write_bytes(bytes(128) + b"DICM" + bytes(99)),
        "in a loop of links": lambda place: (place / "again").symlink_to(place),
        "without endings": lambda place: [one.rename(one.with_suffix("")) for one in place.iterdir()],
        "under odd names": lambda place: [one.rename(place / f"{n}\n \udcff'ü.dcm") for n,
        one in enumerate(place.iterdir())],
        "in folders": lambda place: [((place / f"f{n}").mkdir(), one.rename(place / f"f{n}/x")) for n,
        one in enumerate(sorted(place.iterdir()))],
    }.items():  # fmt: skip
        yield Case(f"segment DICOM {name}", "unusual and right", _study(change), True, like="study")
    for name, tags in {
        "of odd words": {"PatientName": "\u00dc^\u65e5", "SpecificCharacterSet": "ISO_IR 192"},
        "without rescale": {"RescaleSlope": None},
        "of rescale 1": {"RescaleSlope": "1", "RescaleIntercept": "0"}, "of no patient": {"PatientName": None,
        "PatientID": None},
    }.items():  # fmt: skip
        yield Case(f"segment DICOM {name}", "unusual and right", _tagged(tags), True, like="study")
    for syntax in (ImplicitVRLittleEndian, RLELossless, ExplicitVRBigEndian):
        yield Case(
            f"segment DICOM {syntax.name}",
            "unusual and right",
            _study(lambda place, syntax=syntax: _resaved(place, syntax)),
            True,
            like="study",
        )


def _bad_tags() -> Iterator[tuple[str, dict[str, Any]]]:
    nan = "nan"
    for name, values in {
        "Rows": (0, 1, 15, 17, 65535), "Columns": (0, 15, 65535), "BitsAllocated": (0, 7, 8, 32, 64),
        "SamplesPerPixel": (3, 0),
        "PhotometricInterpretation": ("RGB", "PALETTE COLOR", None, ""), "NumberOfFrames": (2**31 - 1, 1000, -5,
        10**11),
        "PixelSpacing": (None, ["0", "0"], ["-1", "1"], ["1"], [nan, nan], ["1e9", "1e9"]),
        "ImagePositionPatient": (None, ["0", "0"], [nan, "0", "0"]),
        "ImageOrientationPatient": (None, ["0"] * 6, ["1", "0", "0", "1", "0", "0"], [nan] * 6, ["2", "0", "0", "0",
        "2", "0"]),
        "RescaleSlope": ("0", nan, "inf"), "RescaleIntercept": (nan,), "PixelData": (None, b"", b"\0" * 10),
        "SeriesInstanceUID": (None,),
        "SOPClassUID": (None,), "SeriesDescription": (None, "localizer", "AX T2 FLAIR T1"), "Modality": ("CT", None),
    }.items():  # fmt: skip
        for value in values:
            yield f"{name} {value!s:.12}", {name: value}
    for name, value in (("StudyInstanceUID", "1.2.3"), ("FrameOfReferenceUID", "1.2.3"), ("EchoTime", 7), ("Rows", 15),
                        ("NumberOfFrames", 2**31 - 1), ("SeriesInstanceUID", "1.2.3.4"), ("PixelSpacing", ["1.21",
                        "0.9"]),
                        ("ImageType", ["DERIVED", "SECONDARY"]), ("ImagePositionPatient", ["-11", "7",
                        "-17.0"])):  # fmt: skip
        if name != "FrameOfReferenceUID":
            yield f"one slice's {name}", {name: value}
    yield "FrameOfReferenceUID 1.2.3", {"FrameOfReferenceUID": "1.2.3"}
    yield "a syntax that cannot be unpacked", {"TransferSyntaxUID": JPEG2000Lossless}
    yield "a syntax that is none", {"TransferSyntaxUID": "1.2.3.4"}
    yield "a deflated syntax", {"TransferSyntaxUID": DeflatedExplicitVRLittleEndian}


def _study(change: Change) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        shutil.copytree(good.study, folder / "study")
        change(folder / "study")
        return segment(good, "study")

    return make


def _one_file(name: str, kind: str, change: Callable[[bytes], bytes]) -> Case:
    def changed(place: Path) -> None:
        path = place / "S1_003.dcm"
        path.write_bytes(change(path.read_bytes()))

    return Case(f"segment DICOM {name}", kind, _study(changed), names="S1_003.dcm")


def _tagged(tags: dict[str, Any], *, only_one: bool = False) -> Callable[[Path, Good], list[str]]:
    """The FLAIR's slices, or one of them, with other tags; None takes one away."""

    def change(place: Path) -> None:
        for path in sorted(place.glob("S1_003.dcm" if only_one else "S1_*.dcm")):
            with pydicom.config.disable_value_validation():
                _retag(path, tags)

    return _study(change)


def _retag(path: Path, tags: dict[str, Any]) -> None:
    data = pydicom.dcmread(path)
    syntax = tags.get("TransferSyntaxUID")
    for name, value in tags.items():
        if name == "TransferSyntaxUID":
            continue
        if value is None:
            data.pop(name, None)
        else:
            setattr(data, name, value)
    data.save_as(path)
    if syntax is not None:
        before = str(data.file_meta.TransferSyntaxUID).encode()
        path.write_bytes(_with_syntax(path.read_bytes(), before, str(syntax).encode()))


def _with_syntax(data: bytes, before: bytes, after: bytes) -> bytes:
    """In place: the element keeps an even length, and the group says its own anew."""
    at = data.index(before) - 8
    length = len(before) + len(before) % 2
    padded = after + b"\0" * (len(after) % 2)
    group = int.from_bytes(data[140:144], "little") + len(padded) - length
    element = data[at : at + 6] + len(padded).to_bytes(2, "little") + padded
    return data[:140] + group.to_bytes(4, "little") + data[144:at] + element + data[at + 8 + length :]


def _resaved(place: Path, syntax: str) -> None:
    for path in place.iterdir():
        data = pydicom.dcmread(path)
        if syntax == RLELossless:
            data.compress(RLELossless)
            data.save_as(path)
        else:
            if syntax == ExplicitVRBigEndian:
                data.PixelData = data.pixel_array.astype(">i2").tobytes()
            data.file_meta.TransferSyntaxUID = syntax
            pydicom.dcmwrite(
                path, data, implicit_vr=syntax == ImplicitVRLittleEndian, little_endian=syntax != ExplicitVRBigEndian
            )


def zips(kind: str = "zip") -> Iterator[Case]:
    yield _zip("stored", lambda data: data, right=True)
    yield _zip("from elsewhere", lambda data: data, before="../../../", right=True)
    yield _zip("of a root", lambda data: data, before="/etc/", right=True)
    for at in (0, 3, 20, 5000, -1, -10, -22, -100):
        yield _zip(f"cut at {at}", lambda data, at=at: data[:at])
    yield _zip("flipped inside", lambda data: flip(data, 300))
    yield _zip("flipped at its end", lambda data: flip(data, -8))
    yield _zip("that is text", lambda _data: b"no zip")
    yield _zip("encrypted by its flags", lambda data: data.replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"))
    yield Case("segment zip empty", kind, _made_zip({}), names="s.zip")
    yield Case("segment zip of text", kind, _made_zip({"a.txt": b"x"}), names="s.zip")
    yield Case("segment zip bomb", kind, _made_zip({"a.dcm": bytes(128) + b"DICM" + bytes(300 << 20)}), names="s.zip")
    yield Case("segment zip of zips", kind, _made_zip({"a.zip": b"PK\3\4"}), names="s.zip")


def _zip(name: str, change: Callable[[bytes], bytes], *, before: str = "", right: bool = False) -> Case:
    def make(folder: Path, good: Good) -> list[str]:
        with zipfile.ZipFile(folder / "s.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(good.study.iterdir()):
                archive.write(path, before + path.name)
        (folder / "s.zip").write_bytes(change((folder / "s.zip").read_bytes()))
        return segment(good, "s.zip")

    return Case(f"segment zip {name}", "unusual and right" if right else "zip", make, right, "s.zip", like="study")


def _made_zip(members: dict[str, bytes]) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        with zipfile.ZipFile(folder / "s.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return segment(good, "s.zip")

    return make
