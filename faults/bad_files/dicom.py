"""Damaged, inconsistent and unusual DICOM studies."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydicom
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from faults.bad_files.base import UNUSUAL, Case, Change, Make, ValidFiles, flip_byte, segment
from faults.bad_files.paths import IRREGULAR, Put

KIND = "DICOM"
NAN = "nan"
TRUNCATED_AT = (0, 1, 128, 132, 140, 200, 500, 800, -1, -400)
FLIPPED_AT = (128, 131, 132, 136, 144)
OTHER_FILES = {"empty": b"", "text": b"no slice\n", "zeros": bytes(999), "NIfTI": b"\x5c\1\0\0" + bytes(348)}
BAD_TAGS: dict[str, tuple[Any, ...]] = {
    "Rows": (0, 17, 65535), "BitsAllocated": (0, 7, 64), "SamplesPerPixel": (3, 0),
    "PhotometricInterpretation": ("RGB", None), "NumberOfFrames": (2**31 - 1, -5),
    "PixelSpacing": (None, ["0", "0"], [NAN, NAN], ["1e9", "1e9"]),
    "ImagePositionPatient": (None, [NAN, "0", "0"]), "ImageOrientationPatient": (None, ["0"] * 6, [NAN] * 6),
    "RescaleSlope": ("0", NAN, "inf"), "PixelData": (None, b"", b"\0" * 10), "SeriesInstanceUID": (None,),
    "SOPClassUID": (None,), "SeriesDescription": (None, "localizer", "AX T2 FLAIR T1"), "Modality": ("CT",),
}  # fmt: skip
BAD_TAGS_OF_ONE_SLICE: dict[str, Any] = {
    "StudyInstanceUID": "1.2.3", "EchoTime": 7, "Rows": 15, "PixelSpacing": ["1.21", "0.9"],
    "ImagePositionPatient": ["-11", "7", "-17.0"],
}  # fmt: skip
UNUSUAL_TAGS: dict[str, dict[str, Any]] = {
    "with non-Latin text": {"PatientName": "\u00dc^\u65e5", "SpecificCharacterSet": "ISO_IR 192"},
    "without rescale": {"RescaleSlope": None},
    "with rescale 1": {"RescaleSlope": "1", "RescaleIntercept": "0"},
    "without a patient": {"PatientName": None, "PatientID": None},
}


def cases() -> Iterator[Case]:
    for at in TRUNCATED_AT:
        yield _change_slice(f"truncated at {at}", lambda data, at=at: data[:at])
    for at in FLIPPED_AT:
        yield _change_slice(f"flipped at {at}", lambda data, at=at: flip_byte(data, at))
    for name, content in OTHER_FILES.items():
        yield _change_slice(f"slice {name}", lambda _data, content=content: content)
    for name, tags in _bad_tags():
        make = _with_tags(tags, one_slice=name.startswith("one slice"))
        yield Case(f"segment DICOM {name}", KIND, make, mentions="study")
    for name, (mentions, change) in INCOMPLETE.items():
        yield Case(f"segment DICOM {name}", KIND, _change_study(change), mentions=mentions)
    irregular = {name: put for name, put in IRREGULAR.items() if name not in ("missing", "empty")}
    beside = {f"beside {name}": lambda study, put=put: put(study / "x.dcm") for name, put in irregular.items()}
    unusual = {name: _change_study(change) for name, change in {**beside, **UNUSUAL_STUDIES}.items()}
    unusual |= {name: _with_tags(tags) for name, tags in UNUSUAL_TAGS.items()}
    for name, make in unusual.items():
        yield Case(f"segment DICOM {name}", UNUSUAL, make, True, reference="study")


def _remove(study: Path, pattern: str) -> None:
    for path in study.glob(pattern):
        path.unlink()


def _rename(study: Path, new_path: Callable[[Path, int], Path]) -> None:
    for number, path in enumerate(sorted(study.iterdir())):
        target = new_path(path, number)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)


def _save_as(study: Path, syntax: str) -> None:
    for path in study.iterdir():
        data = pydicom.dcmread(path)
        if syntax == RLELossless:
            data.compress(RLELossless)
            data.save_as(path)
            continue
        if syntax == ExplicitVRBigEndian:
            data.PixelData = data.pixel_array.astype(">i2").tobytes()
        data.file_meta.TransferSyntaxUID = syntax
        implicit, little = syntax == ImplicitVRLittleEndian, syntax != ExplicitVRBigEndian
        pydicom.dcmwrite(path, data, implicit_vr=implicit, little_endian=little)


INCOMPLETE: dict[str, tuple[str, Put]] = {
    "a slice missing": ("study", lambda study: (study / "S1_003.dcm").unlink()),
    "a slice twice": ("S1_003", lambda study: shutil.copy(study / "S1_003.dcm", study / "x.dcm")),
    "a series missing": ("study", lambda study: _remove(study, "S1*")),
    "only one series": ("study", lambda study: _remove(study, "S[234]*")),
}
UNUSUAL_STUDIES: dict[str, Put] = {
    "beside text": lambda study: (study / "read me.txt").write_text("x"),
    "beside a DICOMDIR": lambda study: (study / "DICOMDIR").write_bytes(bytes(128) + b"DICM" + bytes(99)),
    "with a link to itself": lambda study: (study / "again").symlink_to(study),
    "without suffixes": lambda study: _rename(study, lambda path, _: path.with_suffix("")),
    "with odd names": lambda study: _rename(study, lambda _, number: study / f"{number}\n \udcff'ü.dcm"),
    "in folders": lambda study: _rename(study, lambda _, number: study / f"f{number}/x"),
    "implicit": lambda study: _save_as(study, ImplicitVRLittleEndian),
    "RLE": lambda study: _save_as(study, RLELossless),
    "big-endian": lambda study: _save_as(study, ExplicitVRBigEndian),
}


def _bad_tags() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, values in BAD_TAGS.items():
        for value in values:
            yield f"{name} {value!s:.12}", {name: value}
    for name, value in BAD_TAGS_OF_ONE_SLICE.items():
        yield f"one slice's {name}", {name: value}
    yield "FrameOfReferenceUID 1.2.3", {"FrameOfReferenceUID": "1.2.3"}
    yield "an unsupported syntax", {"TransferSyntaxUID": JPEG2000Lossless}
    yield "an unknown syntax", {"TransferSyntaxUID": "1.2.3.4"}
    yield "a deflated syntax", {"TransferSyntaxUID": DeflatedExplicitVRLittleEndian}


def _change_study(change: Put) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copytree(files.study, folder / "study")
        change(folder / "study")
        return segment(files, "study")

    return make


def _change_slice(name: str, change: Change) -> Case:
    def change_study(study: Path) -> None:
        path = study / "S1_003.dcm"
        path.write_bytes(change(path.read_bytes()))

    return Case(f"segment DICOM {name}", KIND, _change_study(change_study), mentions="S1_003.dcm")


def _with_tags(tags: dict[str, Any], *, one_slice: bool = False) -> Make:
    """All slices of the FLAIR, or one of them, with other tags; None removes a tag."""

    def change(study: Path) -> None:
        for path in sorted(study.glob("S1_003.dcm" if one_slice else "S1_*.dcm")):
            with pydicom.config.disable_value_validation():
                _set_tags(path, tags)

    return _change_study(change)


def _set_tags(path: Path, tags: dict[str, Any]) -> None:
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
        path.write_bytes(_replace_syntax(path.read_bytes(), before, str(syntax).encode()))


def _replace_syntax(data: bytes, before: bytes, after: bytes) -> bytes:
    """In place: the element keeps an even length, and the length of its group is updated."""
    at = data.index(before) - 8
    length = len(before) + len(before) % 2
    padded = after + b"\0" * (len(after) % 2)
    group = int.from_bytes(data[140:144], "little") + len(padded) - length
    element = data[at : at + 6] + len(padded).to_bytes(2, "little") + padded
    return data[:140] + group.to_bytes(4, "little") + data[144:at] + element + data[at + 8 + length :]
