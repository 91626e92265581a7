"""Damaged, inconsistent and unusual DICOM studies, as folders and as zip files."""

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pydicom
from pydicom.uid import ExplicitVRBigEndian, ImplicitVRLittleEndian

from faults.bad_files.base import Case, Edit, changes, contents, damages, rows, segment
from faults.bad_files.paths import IRREGULAR

NAN = "nan"
BAD_SLICES = changes(damages((1, 128, 140, 500, -1), (128, 132, 136, 144))) | contents(
    {"empty": b"", "text": b"no slice\n", "zeros": bytes(999), "NIfTI": b"\x5c\1\0\0" + bytes(348)}
)
BAD_TAGS: dict[str, tuple[Any, ...]] = {  # of all slices of a series; None removes a tag
    "Rows": (0, 17, 65535), "BitsAllocated": (0, 64), "NumberOfFrames": (-5,), "PixelSpacing": (["0", "0"], [NAN, NAN]),
    "ImagePositionPatient": ([NAN, "0", "0"],), "ImageOrientationPatient": (["0"] * 6, [NAN] * 6),
    "RescaleSlope": (NAN, "inf"), "PixelData": (None, b"", b"\0" * 10), "SeriesInstanceUID": (None,),
    "SeriesDescription": (None, "localizer", "AX T2 FLAIR T1"), "Modality": ("CT",), "FrameOfReferenceUID": ("1.2.3",),
}  # fmt: skip
UNUSUAL_TAGS: dict[str, dict[str, Any]] = {
    "with non-Latin text": {"PatientName": "\u00dc^\u65e5", "SpecificCharacterSet": "ISO_IR 192"},
    "without rescale": {"RescaleSlope": None},
    "with rescale 1": {"RescaleSlope": "1", "RescaleIntercept": "0"},
    "without a patient": {"PatientName": None, "PatientID": None},
}
BAD_ZIPS = changes(damages((0, 3, 5000, -1, -22, -100), (300, -8))) | contents({"that is text": b"no zip"})


def cases() -> Iterator[Case]:
    command = segment("study")
    yield from rows("DICOM slice", command, "study/S1_003.dcm", BAD_SLICES)
    tags = {f"{name} {value!s:.12}": _set_tags({name: value}) for name, some in BAD_TAGS.items() for value in some}
    tags["one slice's echo time"] = _set_tags({"EchoTime": 7}, "S1_003.dcm")
    yield from rows("DICOM", command, "study", tags | INCOMPLETE)
    beside = {f"beside {name}": _beside(put) for name, put in IRREGULAR.items() if name not in ("missing", "empty")}
    unusual = {name: _set_tags(tags) for name, tags in UNUSUAL_TAGS.items()}
    yield from rows("DICOM", command, "study", UNUSUAL_STUDIES | beside | unusual, valid=True)
    zipped = segment("study.zip")
    yield from rows("zip", zipped, "study.zip", BAD_ZIPS)
    bomb = {"a.dcm": bytes(128) + b"DICM" + bytes(300 << 20)}
    for name, members in {"empty": {}, "of text": {"a.txt": b"x"}, "bomb": bomb, "of zips": {"a.zip": b"PK"}}.items():
        yield Case(f"zip {name}", zipped, "study.zip", _zip_members(members))


# ---- edits of a study ------------------------------------------------------------------------------------------------


def _remove(pattern: str) -> Edit:
    return lambda study: [path.unlink() for path in study.glob(pattern)]


def _rename(new_name: Callable[[Path, int], str]) -> Edit:
    def edit(study: Path) -> None:
        for number, path in enumerate(sorted(study.iterdir())):
            target = study / new_name(path, number)
            target.parent.mkdir(exist_ok=True)
            path.rename(target)

    return edit


def _beside(put: Edit) -> Edit:
    return lambda study: put(study / "x.dcm")


def _save_as(syntax: str) -> Edit:
    def edit(study: Path) -> None:
        for path in study.iterdir():
            data = pydicom.dcmread(path)
            if syntax == ExplicitVRBigEndian:
                data.PixelData = data.pixel_array.astype(">i2").tobytes()
            data.file_meta.TransferSyntaxUID = syntax
            implicit, little = syntax == ImplicitVRLittleEndian, syntax != ExplicitVRBigEndian
            pydicom.dcmwrite(path, data, implicit_vr=implicit, little_endian=little)

    return edit


INCOMPLETE: dict[str, Edit] = {
    "a slice missing": _remove("S1_003.dcm"),
    "a series missing": _remove("S1*"),
    "only one series": _remove("S[234]*"),
}
UNUSUAL_STUDIES: dict[str, Edit] = {
    "beside text": lambda study: (study / "read me.txt").write_text("x"),
    "beside a DICOMDIR": lambda study: (study / "DICOMDIR").write_bytes(bytes(128) + b"DICM" + bytes(99)),
    "with a link to itself": lambda study: (study / "again").symlink_to(study),
    "without suffixes": _rename(lambda path, _: path.stem),
    "with odd names": _rename(lambda _, number: f"{number}\n \udcff'ü.dcm"),
    "in folders": _rename(lambda _, number: f"f{number}/x"),
    "implicit": _save_as(ImplicitVRLittleEndian),
    "big-endian": _save_as(ExplicitVRBigEndian),
}


def _set_tags(tags: dict[str, Any], pattern: str = "S1_*.dcm") -> Edit:
    def edit(study: Path) -> None:
        for path in sorted(study.glob(pattern)):
            data = pydicom.dcmread(path)
            with pydicom.config.disable_value_validation():
                for name, value in tags.items():
                    if value is None:
                        data.pop(name, None)
                    else:
                        setattr(data, name, value)
            data.save_as(path)

    return edit


# ---- edits of a zip --------------------------------------------------------------------------------------------------


def _zip_members(members: dict[str, bytes]) -> Edit:
    def edit(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)

    return edit
