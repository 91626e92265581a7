"""DICOM headers: the tags that a volume needs, and none that identify the patient.

A file is one slice, or many frames (enhanced MR); both become a list of `Frame`.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anofpdm.errors import ScanError
from anofpdm.scans.dicom.source import MAGIC, MAGIC_AT, Source
from anofpdm.util.text import printable

try:
    import pydicom
    from pydicom.filereader import read_dataset
    from pydicom.multival import MultiValue
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
TRAITS = {  # tags of a frame in an enhanced file, or of a file of one slice
    "echo times": ("EffectiveEchoTime", "EchoTime"),
    "echoes": ("EchoNumbers",),
    "image types": ("FrameType", "ImageType"),
    "points in time": ("TemporalPositionIndex", "TemporalPositionIdentifier"),
    "b-values": ("DiffusionBValue",),
}
FRAME_GROUPS = [
    f"{name}Sequence"
    for name in ("PlanePosition", "PlaneOrientation", "PixelMeasures", "PixelValueTransformation", "MREcho",
                 "MRImageFrameType", "FrameContent", "MRDiffusion")
]  # fmt: skip
TABLE_OF_CONTENTS = "1.2.840.10008.1.3.10"  # a DICOMDIR, whatever its name
Tags = Any  # a pydicom data set, or an item of a sequence


@dataclass(frozen=True)
class Frame:
    """One slice. What its header lacks is empty."""

    file: str  # name in the source
    index: int | None  # of the frame in a multi-frame file
    position: tuple[float, ...]  # [3] of the first pixel's centre, LPS millimetres
    orientation: tuple[float, ...]  # [6] along a row, then along a column
    spacing: tuple[float, ...]  # [2] from row to row, then from column to column
    thickness: float | None  # millimetres
    size: tuple[int, int]  # rows, columns
    traits: dict[str, str]  # equal in all slices of a volume, by the names in TRAITS
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


def read_header(source: Source, name: str) -> tuple[Label, list[Frame]] | None:
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
        return _label(tags), _frames(tags, name)


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


def _read_meta(file: Any, source: Source, name: str) -> Tags:
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
        description=_text(tags.get("SeriesDescription")),
        protocol=_text(tags.get("ProtocolName")),
        agent=_text(tags.get("ContrastBolusAgent")) or (_text(agents[0].get("CodeMeaning")) if agents else ""),
        kind=_text(tags.get("Modality")),
        image_type=tuple(printable(str(word)).upper() for word in tags.get("ImageType") or ()),
        space=str(tags.get("FrameOfReferenceUID", "")),
    )


def _frames(tags: Tags, file: str) -> list[Frame]:
    count = int(tags.get("NumberOfFrames") or 1)
    if "PerFrameFunctionalGroupsSequence" in tags:
        shared = (tags.get("SharedFunctionalGroupsSequence") or [pydicom.Dataset()])[0]
        groups = tags.PerFrameFunctionalGroupsSequence
        if not groups or len(groups) != count:
            raise EOFError
        return [_frame(tags, _flatten(group, shared), file, index) for index, group in enumerate(groups)]
    own = tags if count == 1 else pydicom.Dataset()  # frames without positions are refused later
    return [_frame(tags, own, file, None)]


def _flatten(group: Tags, shared: Tags) -> Tags:
    """The tags of one frame of an enhanced file, which has functional groups per frame, and groups shared by all."""
    flat = pydicom.Dataset()
    for keyword in FRAME_GROUPS:
        for item in (group.get(keyword) or shared.get(keyword) or ())[:1]:
            flat.update(item)
    return flat


def _frame(tags: Tags, own: Tags, file: str, index: int | None) -> Frame:
    """`tags` of the file, and the frame's own ones, which are the same in a file of one slice."""
    colours = _text(tags.get("PhotometricInterpretation"))
    traits = {
        what: next((_text(own.get(keyword)) for keyword in keywords if keyword in own), "")
        for what, keywords in TRAITS.items()
    }
    slope, thickness = own.get("RescaleSlope"), own.get("SliceThickness")
    return Frame(
        file=file,
        index=index,
        position=_numbers(own.get("ImagePositionPatient"), 3),
        orientation=_numbers(own.get("ImageOrientationPatient"), 6),
        spacing=_numbers(own.get("PixelSpacing"), 2),
        thickness=float(thickness) if thickness is not None and float(thickness) > 0 else None,
        size=(int(tags.Rows), int(tags.Columns)),
        traits={**traits, "colours": colours},
        slope=1.0 if slope is None else float(slope),
        intercept=float(own.get("RescaleIntercept") or 0.0),
        inverted=colours == "MONOCHROME1",
    )


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    """Empty if the tag is missing or has another number of values."""
    return tuple(map(float, values)) if isinstance(values, MultiValue) and len(values) == count else ()


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    words = value if isinstance(value, MultiValue) else [] if value is None else [value]
    return printable("\\".join(map(str, words)))
