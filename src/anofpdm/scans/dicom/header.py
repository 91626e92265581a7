"""What a DICOM file says of itself: the few tags that a volume needs, and none that says who the patient is.

A file is one slice, or many frames (enhanced MR); either way it becomes a list of `Frame`.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
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
    raise ScanError("reading DICOM needs two more packages: pip install 'anofpdm[dicom]'") from None

WANTED = [
    "SpecificCharacterSet", "ImageType", "SOPClassUID", "Modality", "SeriesDescription", "ContrastBolusAgent",
    "ContrastBolusAgentSequence", "EchoTime", "EchoNumbers", "DiffusionBValue", "ProtocolName", "StudyInstanceUID",
    "SeriesInstanceUID", "SeriesNumber", "ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID",
    "TemporalPositionIdentifier", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "Rows", "Columns",
    "PixelSpacing", "BitsAllocated", "RescaleIntercept", "RescaleSlope", "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence",
]  # fmt: skip
TABLE_OF_CONTENTS = "1.2.840.10008.1.3.10"  # a DICOMDIR, whatever it is called
MOST_FRAMES = 4096  # of a file that gives them no place, and so cannot be used; a damaged count is endless
Tags = Any  # a pydicom data set, or an item of a sequence


@dataclass(frozen=True)
class Frame:
    """One slice."""

    file: str  # its name in the source
    index: int | None  # of the frame in a file that holds many
    position: tuple[float, ...] | None  # [3] of the first pixel's centre, LPS millimetres
    orientation: tuple[float, ...] | None  # [6] along a row, then along a column
    spacing: tuple[float, ...] | None  # [2] from row to row, then from column to column
    size: tuple[int, int]  # rows, columns
    traits: tuple[tuple[str, str], ...]  # what slices of one volume share: echo time and so on, name and value
    slope: float
    intercept: float
    inverted: bool  # bright is low

    @property
    def name(self) -> str:
        return printable(self.file) if self.index is None else f"{printable(self.file)} frame {self.index + 1}"


@dataclass(frozen=True)
class Label:
    """What a series is called."""

    study: str  # its UID
    uid: str
    number: int | None
    description: str
    protocol: str
    agent: str  # of contrast
    kind: str  # MR, CT, ...
    image_type: tuple[str, ...]
    space: str  # the UID of its frame of reference

    def __str__(self) -> str:
        return f"series {'without number' if self.number is None else self.number} '{self.description}'"


@dataclass(frozen=True)
class Header:
    label: Label
    frames: tuple[Frame, ...]


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """Both libraries quote values that they dislike, names of patients too, in warnings and logs."""
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
    """None where the file is DICOM, and no image."""
    with source.open(name) as file, _read_in_words(source, name):
        if _checked_meta(file, source, name).get("MediaStorageSOPClassUID") == TABLE_OF_CONTENTS:
            return None
        tags = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=list(WANTED))
        if "SOPClassUID" not in tags or "SeriesInstanceUID" not in tags:  # which all but that table have
            raise EOFError
        if "Image Storage" not in tags.SOPClassUID.name:
            return None
        if "Rows" not in tags or "Columns" not in tags:
            raise EOFError
        return Header(_label(tags), _frames(tags, name))


def read_tags(source: Source, name: str, *, pixels: bool) -> Tags:
    """All tags of a file, the patient's too: to be written into results, never into messages."""
    with source.open(name) as file, _read_in_words(source, name):
        _checked_meta(file, source, name)
        return pydicom.dcmread(file, stop_before_pixels=not pixels)


def is_decodable(tags: Tags) -> bool:
    """Whether the pixels are plain, or packed in a way that an installed library unpacks."""
    syntax = tags.file_meta.get("TransferSyntaxUID")
    try:
        return syntax is None or not syntax.is_compressed or bool(get_decoder(syntax).is_available)
    except (NotImplementedError, ValueError):  # unknown to pydicom, or no way of packing at all
        return False


@contextlib.contextmanager
def _read_in_words(source: Source, name: str) -> Iterator[None]:
    try:
        with silence_libraries():
            yield
    except ScanError:
        raise
    except Exception as problem:  # pydicom raises all kinds on damaged files, with the damaged value in the message
        raise ScanError(
            f"{source.path}: {printable(name)} is cut short or damaged ({type(problem).__name__}); copy it again"
        ) from None


def _checked_meta(file: BinaryIO, source: Source, name: str) -> Tags:
    """The first group of tags. A deflated file is refused: pydicom would unpack it whole, however large it becomes."""
    file.seek(MAGIC_AT + len(MAGIC))
    meta = read_dataset(file, False, True, stop_when=lambda tag, _vr, _length: Tag(tag).group != 2)
    file.seek(0)
    if meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian:
        raise ScanError(
            f"{source.path}: {printable(name)} is deflated as a whole, which is not read; "
            "convert it first (dcmconv +te, gdcmconv --raw)"
        )
    return meta


def _label(tags: Tags) -> Label:
    number = tags.get("SeriesNumber")
    return Label(
        study=str(tags.get("StudyInstanceUID", "")),
        uid=str(tags.SeriesInstanceUID),
        number=None if number is None else int(number),
        description=_text(tags, "SeriesDescription"),
        protocol=_text(tags, "ProtocolName"),
        agent=_agent(tags),
        kind=_text(tags, "Modality"),
        image_type=tuple(printable(str(word)).upper() for word in tags.get("ImageType") or ()),
        space=str(tags.get("FrameOfReferenceUID", "")),
    )


def _agent(tags: Tags) -> str:
    used = tags.get("ContrastBolusAgentSequence")
    return _text(tags, "ContrastBolusAgent") or (_text(used[0], "CodeMeaning") if used else "")


def _text(tags: Tags, keyword: str) -> str:
    value = tags.get(keyword)
    return "" if value is None else printable(str(value))


# ---- frames ----------------------------------------------------------------------------------------------------------


def _frames(tags: Tags, file: str) -> tuple[Frame, ...]:
    if "PerFrameFunctionalGroupsSequence" in tags:
        shared = (tags.get("SharedFunctionalGroupsSequence") or [pydicom.Dataset()])[0]
        groups = tags.PerFrameFunctionalGroupsSequence
        if not groups or len(groups) != int(tags.get("NumberOfFrames") or 1):
            raise EOFError
        return tuple(_enhanced_frame(tags, group, shared, file, index) for index, group in enumerate(groups))
    if int(tags.get("NumberOfFrames") or 1) > 1:
        many = range(min(int(tags.NumberOfFrames), MOST_FRAMES))
        return tuple(_frame(tags, pydicom.Dataset(), file, index, _traits(tags)) for index in many)
    return (_frame(tags, tags, file, None, _traits(tags)),)


def _enhanced_frame(tags: Tags, group: Tags, shared: Tags, file: str, index: int) -> Frame:
    """An enhanced file keeps what concerns one frame in groups, and what all frames have in common in one more."""

    def item(keyword: str) -> Tags:
        found = group.get(keyword) or shared.get(keyword)
        return found[0] if found else pydicom.Dataset()

    place = pydicom.Dataset()
    for keyword in ("PlanePositionSequence", "PlaneOrientationSequence", "PixelMeasuresSequence"):
        place.update(item(keyword))
    place.update(item("PixelValueTransformationSequence"))
    traits = (
        ("echo times", _number(item("MREchoSequence").get("EffectiveEchoTime"))),
        ("image types", _words(item("MRImageFrameTypeSequence").get("FrameType"))),
        ("points in time", str(item("FrameContentSequence").get("TemporalPositionIndex", ""))),
        ("b-values", _number(item("MRDiffusionSequence").get("DiffusionBValue"))),
    )
    return _frame(tags, place, file, index, traits)


def _traits(tags: Tags) -> tuple[tuple[str, str], ...]:
    return (
        ("echo times", _number(tags.get("EchoTime"))),
        ("echoes", str(tags.get("EchoNumbers", ""))),
        ("image types", _words(tags.get("ImageType"))),
        ("points in time", str(tags.get("TemporalPositionIdentifier", ""))),
        ("b-values", _number(tags.get("DiffusionBValue"))),
    )


def _frame(tags: Tags, place: Tags, file: str, index: int | None, traits: tuple[tuple[str, str], ...]) -> Frame:
    slope, intercept = place.get("RescaleSlope"), place.get("RescaleIntercept")
    return Frame(
        file=file,
        index=index,
        position=_numbers(place.get("ImagePositionPatient"), 3),
        orientation=_numbers(place.get("ImageOrientationPatient"), 6),
        spacing=_numbers(place.get("PixelSpacing"), 2),
        size=(int(tags.Rows), int(tags.Columns)),
        traits=(*traits, ("colours", _text(tags, "PhotometricInterpretation"))),
        slope=1.0 if slope is None else float(slope),
        intercept=0.0 if intercept is None else float(intercept),
        inverted=_text(tags, "PhotometricInterpretation") == "MONOCHROME1",
    )


def _numbers(values: Any, count: int) -> tuple[float, ...] | None:
    """None where the tag is missing, empty, or has another number of values."""
    if values is None or isinstance(values, str | float | int) or len(values) != count:
        return None
    return tuple(float(value) for value in values)


def _number(value: Any) -> str:
    return "" if value is None else f"{float(value):.5g}"


def _words(values: Any) -> str:
    return "" if values is None else printable(values if isinstance(values, str) else "\\".join(map(str, values)))
