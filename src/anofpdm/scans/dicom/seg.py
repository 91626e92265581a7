"""DICOM out: the mask as DICOM-SEG on the series it was drawn from, and a picture as secondary capture, both in the
patient's study. What the source says of the patient is copied, and where it says nothing, nothing is made up."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from anofpdm import __version__
from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import Tags, read_tags, silence_libraries
from anofpdm.scans.dicom.read import Study
from anofpdm.scans.dicom.source import open_source
from anofpdm.util.files import write_atomically

try:
    import highdicom
    from highdicom.enum import PatientSexValues
    from pydicom import Dataset
    from pydicom.sr.codedict import codes
    from pydicom.valuerep import DA, TM, DSfloat
except ImportError:
    raise ScanError("writing DICOM needs two more packages: pip install 'anofpdm[dicom]'") from None

LABEL = "Lesion, suspected (AnoFPDM, research use)"
DESCRIPTION = "AnoFPDM lesion mask (research use)"
CAPTURE_DESCRIPTION = "AnoFPDM overview (research use)"
NOTE = "Research use only, not for diagnosis"
SERIES_NUMBERS = (9001, 9002)  # mask and picture; far from a scanner's own
RED = (255, 0, 0)
UTF_8 = "ISO_IR 192"
# What every object of a study has to say, if only that it does not know.
TEXTS = ("PatientID", "PatientName", "AccessionNumber", "StudyID", "ReferringPhysicianName")
CHECKED: dict[str, Callable[[Any], Any]] = {
    "PatientBirthDate": DA, "PatientSex": PatientSexValues, "StudyDate": DA, "StudyTime": TM,
}  # fmt: skip


def write_seg(path: Path, mask: np.ndarray, study: Study) -> None:
    """`mask` [i, j, k] on the study's grid; above 0 is lesion. An empty mask is written with all its frames."""
    if mask.shape != study.reference.shape:
        raise ValueError(f"a mask of {mask.shape} does not fill a grid of {study.reference.shape}")
    planes = (mask > 0).transpose(2, 1, 0).astype(np.uint8)  # [slice, row, column]
    sources = _source_images(study)
    if len(sources) == 1:  # a file of many frames, in whatever order
        in_file = np.empty_like(planes)
        in_file[[frame.index or 0 for frame in study.reference.frames]] = planes
        planes = in_file
    with silence_libraries():
        made = highdicom.seg.Segmentation(
            source_images=sources,
            pixel_array=planes,
            segmentation_type="BINARY",
            segment_descriptions=[_lesion()],
            series_number=SERIES_NUMBERS[0],
            series_description=DESCRIPTION,
            content_label="LESION",
            content_description=NOTE,
            content_creator_name="AnoFPDM",
            **_maker(),
        )
        _save(path, made)


def write_capture(path: Path, picture: bytes | np.ndarray, study: Study) -> None:
    """`picture` is a PNG, or uint8 [row, column, 3]; slices in it are seen from the feet, the face up."""
    pixels = _rgb(picture) if isinstance(picture, bytes) else np.ascontiguousarray(picture, dtype=np.uint8)
    (first,) = _headers(study, [study.reference.frames[0].file])
    with silence_libraries():
        made = highdicom.sc.SCImage.from_ref_dataset(
            ref_dataset=first,
            pixel_array=pixels,
            photometric_interpretation="RGB",
            bits_allocated=8,
            coordinate_system="PATIENT",
            patient_orientation=("L", "P"),
            series_number=SERIES_NUMBERS[1],
            series_description=CAPTURE_DESCRIPTION,
            transfer_syntax_uid="1.2.840.10008.1.2.1",
            **_maker(),
        )
        made.BurnedInAnnotation = "YES"  # the scan's name stands in it
        made.DerivationDescription = NOTE
        _save(path, made)


def _lesion() -> Any:
    return highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label=LABEL,
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=codes.SCT.Lesion,
        algorithm_type="AUTOMATIC",
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name="AnoFPDM", family=codes.DCM.ArtificialIntelligence, version=__version__
        ),
        anatomic_regions=[codes.SCT.Brain],
        display_color=highdicom.color.CIELabColor.from_rgb(*RED),
    )


def _maker() -> dict[str, Any]:
    """Who made an object; new identifiers each time, as no two objects may share one."""
    return {
        "series_instance_uid": highdicom.UID(),
        "sop_instance_uid": highdicom.UID(),
        "instance_number": 1,
        "manufacturer": "AnoFPDM",
        "manufacturer_model_name": "anofpdm",
        "software_versions": __version__,
        "device_serial_number": "0",
        "specific_character_set": UTF_8,
    }


def _save(path: Path, made: Dataset) -> None:
    buffer = io.BytesIO()
    made.save_as(buffer, enforce_file_format=True)
    write_atomically(path, buffer.getvalue())


def _rgb(png: bytes) -> np.ndarray:
    """Transparent is white, as on a page."""
    with Image.open(io.BytesIO(png)) as image:
        over = image.convert("RGBA")
    page = Image.new("RGBA", over.size, "white")
    return np.asarray(Image.alpha_composite(page, over).convert("RGB"))


# ---- the source ------------------------------------------------------------------------------------------------------


def _source_images(study: Study) -> list[Tags]:
    """Headers of the reference series along its normal, made fit for being referred to."""
    images = _headers(study, list(dict.fromkeys(frame.file for frame in study.reference.frames)))
    if study.reference.frames[0].index is not None and len(images) > 1:
        raise ScanError(
            f"{study.path}: {study.reference.label} is {len(images)} files of many frames each, on which no DICOM-SEG "
            "can be written; take the NIfTI mask, or export the series as one file"
        )
    if "FrameOfReferenceUID" not in images[0]:
        raise ScanError(
            f"{study.path}: {study.reference.label} names no frame of reference, so no DICOM-SEG can be laid over it; "
            "take the NIfTI mask"
        )
    with silence_libraries():
        _share_geometry(images, study)
    return images


def _headers(study: Study, names: Sequence[str]) -> list[Tags]:
    """Of these files, with something said, if only nothing, wherever the standard wants it."""
    with open_source(study.path) as source:
        images = [read_tags(source, name, pixels=False) for name in names]
    with silence_libraries():
        for image in images:
            _complete(image)
    return images


def _complete(image: Tags) -> None:
    for keyword in TEXTS:
        setattr(image, keyword, str(image.get(keyword) or ""))
    for keyword, kind in CHECKED.items():
        value = str(image.get(keyword) or "")
        try:
            kind(value)
        except ValueError:  # not by the standard: better nothing than an object that others refuse
            value = ""
        setattr(image, keyword, value)


def _share_geometry(images: Sequence[Tags], study: Study) -> None:
    """Orientation and pixel spacing once for all frames, and the true distance of slices."""
    first = study.reference.frames[0]
    (spacing,) = _decimals(study.grid.spacing_mm[2:])
    for image in images:
        if first.index is None:
            image.ImageOrientationPatient = _decimals(first.orientation or ())
            place = image
        else:
            place = _shared_groups(image, first.orientation)
        place.PixelSpacing = _decimals(first.spacing or ())
        place.SliceThickness = place.get("SliceThickness") or spacing
        place.SpacingBetweenSlices = spacing


def _shared_groups(image: Tags, orientation: tuple[float, ...] | None) -> Tags:
    """The pixel measures that all frames of an enhanced file share, moved there if they stood with each frame."""
    if not image.get("SharedFunctionalGroupsSequence"):
        image.SharedFunctionalGroupsSequence = [Dataset()]
    shared = image.SharedFunctionalGroupsSequence[0]
    plane = Dataset()
    plane.ImageOrientationPatient = _decimals(orientation or ())
    shared.PlaneOrientationSequence = [plane]
    measures = shared.get("PixelMeasuresSequence") or image.PerFrameFunctionalGroupsSequence[0].PixelMeasuresSequence
    shared.PixelMeasuresSequence = [measures[0]]
    return measures[0]


def _decimals(values: Iterable[float]) -> list[DSfloat]:
    """In the 16 characters that the standard has for a number."""
    return [DSfloat(float(value), auto_format=True) for value in values]
