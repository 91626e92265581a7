"""DICOM headers: the tags that a volume needs, and none that identify the patient.

A file is one slice, or many frames (enhanced MR); both become a list of `Frame`.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.source import MAGIC, MAGIC_AT, Source
from anofpdm.util.text import printable

try:
    import pydicom
    from pydicom.filereader import read_dataset
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.tag import Tag
except ImportError:
    raise ScanError("reading DICOM needs optional packages; run pip install 'anofpdm[dicom]'") from None

READ_TAGS = [
    "SpecificCharacterSet", "ImageType", "SOPClassUID", "Modality", "SeriesDescription", "ContrastBolusAgent",
    "ContrastBolusAgentSequence", "EchoTime", "EchoNumbers", "DiffusionBValue", "ProtocolName", "StudyInstanceUID",
    "SeriesInstanceUID", "SeriesNumber", "ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID",
    "TemporalPositionIdentifier", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns",
    "PixelSpacing", "BitsAllocated", "RescaleIntercept", "RescaleSlope", "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence", "SliceThickness",
]  # fmt: skip
TABLE_OF_CONTENTS = "1.2.840.10008.1.3.10"  # a DICOMDIR, whatever its name
MAX_FRAMES = 4096  # of a file without frame positions, which is refused anyway; the count may be damaged
Tags = Any  # a pydicom data set, or an item of a sequence


@dataclass(frozen=True)
class Frame:
    """One slice."""

    file: str  # name in the source
    index: int | None  # of the frame in a multi-frame file
    position: tuple[float, ...] | None  # [3] of the first pixel's centre, LPS millimetres
    orientation: tuple[float, ...] | None  # [6] along a row, then along a column
    spacing: tuple[float, ...] | None  # [2] from row to row, then from column to column
    thickness: float | None  # millimetres
    size: tuple[int, int]  # rows, columns
    traits: tuple[tuple[str, str], ...]  # equal in all slices of a volume, e.g. echo time: name and value
    slope: float
    intercept: float
    inverted: bool  # low values are bright

    @property
    def name(self) -> str:
        return printable(self.file) if self.index is None else f"{printable(self.file)} frame {self.index + 1}"


@dataclass(frozen=True)
class Label:
    """Identification of a series."""

    study: str  # UID
    uid: str
    number: int | None
    description: str
    protocol: str
    agent: str  # contrast agent
    kind: str  # MR, CT, ...
    image_type: tuple[str, ...]
    space: str  # UID of the frame of reference

    def __str__(self) -> str:
        return f"series {'without number' if self.number is None else self.number} '{self.description}'"


@dataclass(frozen=True)
class Header:
    label: Label
    frames: tuple[Frame, ...]


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Suppress warnings and logs of pydicom and highdicom, which may quote patient names."""
    loggers = [logging.getLogger(name) for name in ("pydicom", "highdicom")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL + 1)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def read_header(source: Source, name: str) -> Header | None:
    """None for a DICOM file that is not an image."""
    with source.open(name) as file, _translate_read_errors(source, name):
        if _read_meta(file, source, name).get("MediaStorageSOPClassUID") == TABLE_OF_CONTENTS:
            return None
        tags = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=list(READ_TAGS))
        if "SOPClassUID" not in tags or "SeriesInstanceUID" not in tags:  # required in all files but a DICOMDIR
            raise EOFError
        if "Image Storage" not in tags.SOPClassUID.name:
            return None
        if "Rows" not in tags or "Columns" not in tags:
            raise EOFError
        return Header(_label(tags), _frames(tags, name))


def read_tags(source: Source, name: str, *, pixels: bool) -> Tags:
    """All tags of a file, including the patient's: for results only, never for messages."""
    with source.open(name) as file, _translate_read_errors(source, name):
        _read_meta(file, source, name)
        return pydicom.dcmread(file, stop_before_pixels=not pixels)


def is_decodable(tags: Tags) -> bool:
    """Whether the pixels are uncompressed, or an installed library can decompress them."""
    syntax = tags.file_meta.get("TransferSyntaxUID")
    try:
        return syntax is None or not syntax.is_compressed or bool(get_decoder(syntax).is_available)
    except (NotImplementedError, ValueError):  # unknown to pydicom, or not a transfer syntax
        return False


@contextlib.contextmanager
def _translate_read_errors(source: Source, name: str) -> Iterator[None]:
    try:
        with silence_libraries():
            yield
    except ScanError:
        raise
    except Exception as problem:  # pydicom raises many types on damaged files, with the damaged value in the message
        raise ScanError(
            f"{source.path}: {printable(name)} is truncated or damaged ({type(problem).__name__}); copy it again"
        ) from None


def _read_meta(file: BinaryIO, source: Source, name: str) -> Tags:
    """The file meta information. Deflated files are refused: pydicom would decompress them without a size limit."""
    file.seek(MAGIC_AT + len(MAGIC))
    meta = read_dataset(file, False, True, stop_when=lambda tag, _vr, _length: Tag(tag).group != 2)
    file.seek(0)
    if meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian:
        raise ScanError(
            f"{source.path}: {printable(name)} has a deflated transfer syntax, which is not supported; "
            "convert it first (dcmconv +te, gdcmconv --raw)"
        )
    return meta


def _label(tags: Tags) -> Label:
    number, agents = tags.get("SeriesNumber"), tags.get("ContrastBolusAgentSequence")
    return Label(
        study=str(tags.get("StudyInstanceUID", "")),
        uid=str(tags.SeriesInstanceUID),
        number=None if number is None else int(number),
        description=_text(tags, "SeriesDescription"),
        protocol=_text(tags, "ProtocolName"),
        agent=_text(tags, "ContrastBolusAgent") or (_text(agents[0], "CodeMeaning") if agents else ""),
        kind=_text(tags, "Modality"),
        image_type=tuple(printable(str(word)).upper() for word in tags.get("ImageType") or ()),
        space=str(tags.get("FrameOfReferenceUID", "")),
    )


def _text(tags: Tags, keyword: str) -> str:
    value = tags.get(keyword)
    return "" if value is None else printable(str(value))


def _frames(tags: Tags, file: str) -> tuple[Frame, ...]:
    if "PerFrameFunctionalGroupsSequence" in tags:
        shared = (tags.get("SharedFunctionalGroupsSequence") or [pydicom.Dataset()])[0]
        groups = tags.PerFrameFunctionalGroupsSequence
        if not groups or len(groups) != int(tags.get("NumberOfFrames") or 1):
            raise EOFError
        return tuple(_enhanced_frame(tags, group, shared, file, index) for index, group in enumerate(groups))
    if int(tags.get("NumberOfFrames") or 1) > 1:
        first = _frame(tags, pydicom.Dataset(), file, 0, _traits(tags))
        return tuple(replace(first, index=index) for index in range(min(int(tags.NumberOfFrames), MAX_FRAMES)))
    return (_frame(tags, tags, file, None, _traits(tags)),)


def _enhanced_frame(tags: Tags, group: Tags, shared: Tags, file: str, index: int) -> Frame:
    """An enhanced file has functional groups per frame, and groups shared by all frames."""

    def item(keyword: str) -> Tags:
        items = group.get(keyword) or shared.get(keyword)
        return items[0] if items else pydicom.Dataset()

    geometry = pydicom.Dataset()
    for keyword in ("PlanePosition", "PlaneOrientation", "PixelMeasures", "PixelValueTransformation"):
        geometry.update(item(f"{keyword}Sequence"))
    traits = (
        ("echo times", _number(item("MREchoSequence").get("EffectiveEchoTime"))),
        ("image types", _words(item("MRImageFrameTypeSequence").get("FrameType"))),
        ("points in time", str(item("FrameContentSequence").get("TemporalPositionIndex", ""))),
        ("b-values", _number(item("MRDiffusionSequence").get("DiffusionBValue"))),
    )
    return _frame(tags, geometry, file, index, traits)


def _traits(tags: Tags) -> tuple[tuple[str, str], ...]:
    return (
        ("echo times", _number(tags.get("EchoTime"))),
        ("echoes", str(tags.get("EchoNumbers", ""))),
        ("image types", _words(tags.get("ImageType"))),
        ("points in time", str(tags.get("TemporalPositionIdentifier", ""))),
        ("b-values", _number(tags.get("DiffusionBValue"))),
    )


def _frame(tags: Tags, geometry: Tags, file: str, index: int | None, traits: tuple[tuple[str, str], ...]) -> Frame:
    slope, intercept = geometry.get("RescaleSlope"), geometry.get("RescaleIntercept")
    return Frame(
        file=file,
        index=index,
        position=_numbers(geometry.get("ImagePositionPatient"), 3),
        orientation=_numbers(geometry.get("ImageOrientationPatient"), 6),
        spacing=_numbers(geometry.get("PixelSpacing"), 2),
        thickness=_positive(geometry.get("SliceThickness")),
        size=(int(tags.Rows), int(tags.Columns)),
        traits=(*traits, ("colours", _text(tags, "PhotometricInterpretation"))),
        slope=1.0 if slope is None else float(slope),
        intercept=0.0 if intercept is None else float(intercept),
        inverted=_text(tags, "PhotometricInterpretation") == "MONOCHROME1",
    )


def _numbers(values: Any, count: int) -> tuple[float, ...] | None:
    """None if the tag is missing, empty, or has another number of values."""
    if values is None or isinstance(values, str | float | int) or len(values) != count:
        return None
    return tuple(float(value) for value in values)


def _positive(value: Any) -> float | None:
    return float(value) if value is not None and float(value) > 0 else None


def _number(value: Any) -> str:
    return "" if value is None else f"{float(value):.5g}"


def _words(values: Any) -> str:
    return "" if values is None else printable(values if isinstance(values, str) else "\\".join(map(str, values)))
