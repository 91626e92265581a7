"""Writing DICOM: the mask as DICOM-SEG that refers to its source series, and an image as secondary capture, both in the
patient's study. Patient data is copied from the source; missing values stay empty."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from anofpdm import __version__
from anofpdm.errors import ScanError
from anofpdm.scans.dicom.header import Tags, read_tags, silence_libraries
from anofpdm.scans.dicom.read import DicomStudy
from anofpdm.scans.dicom.source import open_source
from anofpdm.scans.seg_nrrd import LESION_NAME
from anofpdm.util.files import write_atomically

try:
    import highdicom
    from highdicom.enum import PatientSexValues
    from pydicom import Dataset
    from pydicom.sr.codedict import codes
    from pydicom.valuerep import DA, TM, DSfloat
except ImportError:
    raise ScanError("writing DICOM needs optional packages; run pip install 'anofpdm[dicom]'") from None

NOTE = "Research use only, not for diagnosis"
LONG_STRING = 64  # characters
SERIES_NUMBERS = (9001, 9002)  # mask and image; far from the scanner's numbers
FIRST_NUMBER_ON_SERIES = 9003  # masks on the grids of the other series of a raw study
# Required in every object of a study, possibly empty, and what refuses an invalid value.
TEXTS = ("PatientID", "PatientName", "AccessionNumber", "StudyID", "ReferringPhysicianName")
REQUIRED: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(TEXTS, str),
    "PatientBirthDate": DA, "PatientSex": PatientSexValues, "StudyDate": DA, "StudyTime": TM,
}  # fmt: skip


def write_seg(
    path: Path,
    mask: np.ndarray,
    study: DicomStudy,
    series_number: int = SERIES_NUMBERS[0],
    missing: Sequence[str] = (),  # modalities that the model also takes
) -> None:
    """`mask` [i, j, k] on the study's grid; above 0 is lesion. An empty mask is written with all frames."""
    if mask.shape != study.reference.shape:
        raise ValueError(f"mask of shape {mask.shape} does not fill a grid of {study.reference.shape}")
    planes = (mask > 0).transpose(2, 1, 0).astype(np.uint8)  # [slice, row, column]
    sources = _source_images(study)
    if len(sources) == 1:  # a multi-frame file, in any order of frames
        file_order = np.empty_like(planes)
        file_order[[frame.index or 0 for frame in study.reference.frames]] = planes
        planes = file_order
    with silence_libraries():
        result = highdicom.seg.Segmentation(
            source_images=sources,
            pixel_array=planes,
            segmentation_type="BINARY",
            segment_descriptions=[_segment_description(missing)],
            series_number=series_number,
            series_description="AnoFPDM lesion mask (research use)",
            content_label="LESION",
            content_description=describe_content(missing),
            content_creator_name="AnoFPDM",
            **_equipment(),
        )
        _save(path, result)


def describe_content(missing: Sequence[str] = ()) -> str:
    """At most 64 characters, the length of a DICOM long string."""
    names = ", ".join(name.upper() for name in missing)
    texts = (f"{NOTE}; without {names}", f"{NOTE}; {len(missing)} modalities missing") if missing else (NOTE,)
    return next(text for text in texts if len(text) <= LONG_STRING)


def write_capture(path: Path, png: bytes, study: DicomStudy, missing: Sequence[str] = ()) -> None:
    """A picture with slices in radiological convention; transparent pixels become white."""
    with Image.open(io.BytesIO(png)) as image:
        foreground = image.convert("RGBA")
    background = Image.new("RGBA", foreground.size, "white")
    (first,) = _headers(study, [study.reference.frames[0].file])
    with silence_libraries():
        result = highdicom.sc.SCImage.from_ref_dataset(
            ref_dataset=first,
            pixel_array=np.asarray(Image.alpha_composite(background, foreground).convert("RGB")),
            photometric_interpretation="RGB",
            bits_allocated=8,
            coordinate_system="PATIENT",
            patient_orientation=("L", "P"),
            series_number=SERIES_NUMBERS[1],
            series_description="AnoFPDM overview (research use)",
            transfer_syntax_uid="1.2.840.10008.1.2.1",
            **_equipment(),
        )
        result.BurnedInAnnotation = "YES"  # it contains the scan's name
        result.DerivationDescription = _derivation(missing)
        _save(path, result)


def _derivation(missing: Sequence[str]) -> str:
    return f"{NOTE}. Modalities that the scan lacks: {', '.join(missing)}" if missing else NOTE


def _segment_description(missing: Sequence[str]) -> Any:
    description = highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label=LESION_NAME,
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=codes.SCT.Lesion,
        algorithm_type="AUTOMATIC",
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name="AnoFPDM", family=codes.DCM.ArtificialIntelligence, version=__version__
        ),
        anatomic_regions=[codes.SCT.Brain],
        display_color=highdicom.color.CIELabColor.from_rgb(255, 0, 0),
    )
    description.SegmentDescription = _derivation(missing)
    return description


def _equipment() -> dict[str, Any]:
    """Equipment and new unique identifiers."""
    return {
        "series_instance_uid": highdicom.UID(),
        "sop_instance_uid": highdicom.UID(),
        "instance_number": 1,
        "manufacturer": "AnoFPDM",
        "manufacturer_model_name": "anofpdm",
        "software_versions": __version__,
        "device_serial_number": "0",
        "specific_character_set": "ISO_IR 192",  # UTF-8
    }


def _save(path: Path, dataset: Dataset) -> None:
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    write_atomically(path, buffer.getvalue())


def _source_images(study: DicomStudy) -> list[Tags]:
    """Headers of the reference series, sorted along its normal, with consistent geometry."""
    images = _headers(study, list(dict.fromkeys(frame.file for frame in study.reference.frames)))
    if study.reference.frames[0].index is not None and len(images) > 1:
        raise ScanError(
            f"{study.path}: {study.reference.label} has {len(images)} multi-frame files, for which no DICOM-SEG can "
            "be written; use the NIfTI mask, or export the series as one file"
        )
    if "FrameOfReferenceUID" not in images[0]:
        raise ScanError(
            f"{study.path}: {study.reference.label} has no frame of reference, so a DICOM-SEG cannot refer to it; "
            "use the NIfTI mask"
        )
    with silence_libraries():
        _share_geometry(images, study)
    return images


def _headers(study: DicomStudy, names: Sequence[str]) -> list[Tags]:
    """Headers of these files, with the attributes that the standard requires."""
    with open_source(study.path) as source:
        images = [read_tags(source, name, pixels=False) for name in names]
    with silence_libraries():
        for image in images:
            for keyword, kind in REQUIRED.items():
                value = str(image.get(keyword) or "")
                try:
                    kind(value)
                except ValueError:  # invalid: an empty value keeps the object readable for others
                    value = ""
                setattr(image, keyword, value)
    return images


def _share_geometry(images: Sequence[Tags], study: DicomStudy) -> None:
    """Set orientation and pixel spacing equally in all frames, and the true slice spacing."""
    first = study.reference.frames[0]
    (spacing,) = _decimals(study.grid.spacing_mm[2:])
    for image in images:
        plane = measures = image
        if first.index is not None:
            plane, measures = Dataset(), _shared_measures(image)
            image.SharedFunctionalGroupsSequence[0].PlaneOrientationSequence = [plane]
        plane.ImageOrientationPatient = _decimals(first.orientation)
        measures.PixelSpacing = _decimals(first.spacing)
        measures.SliceThickness = measures.get("SliceThickness") or spacing
        measures.SpacingBetweenSlices = spacing


def _shared_measures(image: Tags) -> Tags:
    """Pixel measures shared by all frames of an enhanced file, moved there from the single frames if necessary."""
    if not image.get("SharedFunctionalGroupsSequence"):
        image.SharedFunctionalGroupsSequence = [Dataset()]
    shared = image.SharedFunctionalGroupsSequence[0]
    measures = shared.get("PixelMeasuresSequence") or image.PerFrameFunctionalGroupsSequence[0].PixelMeasuresSequence
    shared.PixelMeasuresSequence = [measures[0]]
    return measures[0]


def _decimals(values: Iterable[float]) -> list[DSfloat]:
    """Decimal strings of at most 16 characters, as the standard requires."""
    return [DSfloat(float(value), auto_format=True) for value in values]
