"""DICOM files made by pydicom alone, and where their voxels are by the standard's own equation."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import UID, EnhancedMRImageStorage, ExplicitVRLittleEndian, MRImageStorage, generate_uid
from scipy.spatial.transform import Rotation

AXIAL = np.array([[1.0, 0, 0], [0, 1, 0]])
SAGITTAL = np.array([[0.0, 1, 0], [0, 0, -1]])
CORONAL = np.array([[1.0, 0, 0], [0, 0, -1]])
OBLIQUE = AXIAL @ Rotation.from_euler("xyz", (17, -9, 24), degrees=True).as_matrix().T
STUDY, SPACE = generate_uid(), generate_uid()
PATIENT = {"PatientName": "Secret^Sarah", "PatientID": "MRN-QUARTZ", "PatientBirthDate": "19700101", "PatientSex": "F"}


class Series:
    """Slices of one volume: voxels [slice, row, column], in the order of their numbers."""

    def __init__(self, voxels=None, *, cosines=AXIAL, spacing=(1.2, 0.9), step=2.5, origin=(-11.0, 7.0, -20.0), **tags):
        self.voxels = head(12, 16, 14) if voxels is None else voxels
        self.cosines, self.spacing = np.asarray(cosines, dtype=float), spacing  # spacing: between rows, between columns
        self.step = np.cross(*self.cosines) * step
        self.origin = np.asarray(origin, dtype=float)
        self.uid = generate_uid()
        self.tags = {"SeriesNumber": 3, "SeriesDescription": "AX T2 FLAIR", **tags}

    def position(self, number: float) -> np.ndarray:
        return self.origin + number * self.step

    def world(self, column: float, row: float, number: float) -> np.ndarray:
        """[3] RAS: equation C.7.6.2.1-1 of PS3.3, with x and y turned."""
        (along_row, along_column), (row_mm, column_mm) = self.cosines, self.spacing
        lps = self.position(number) + column * column_mm * along_row + row * row_mm * along_column
        return lps * (-1, -1, 1)

    def slice(self, number: int, **changes) -> FileDataset:
        place = {
            "InstanceNumber": number + 1,
            "ImageOrientationPatient": decimals(self.cosines.ravel()),
            "ImagePositionPatient": decimals(self.position(number)),
            "PixelSpacing": decimals(self.spacing),
            "SliceThickness": 2.0,
        }
        return image_tags(MRImageStorage, self.voxels[number], self.uid, {**place, **self.tags, **changes})

    def save(self, folder: Path, prefix: str = "IM", *, without=(), **changes) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(len(self.voxels)):
            if number not in without:
                write(folder / f"{prefix}{number:03d}.dcm", self.slice(number, **changes))
        return folder

    def enhanced(self, order=None, *, shared: bool = True) -> FileDataset:
        """All slices as frames of one file, in `order`."""
        order = list(range(len(self.voxels))) if order is None else order
        tags = image_tags(
            EnhancedMRImageStorage, self.voxels[order], self.uid, {"NumberOfFrames": len(order), **self.tags}
        )
        common, tags.PerFrameFunctionalGroupsSequence = Dataset(), []
        for number in order:
            frame = item(
                PlanePositionSequence=[item(ImagePositionPatient=decimals(self.position(number)))],
                FrameContentSequence=[item(DimensionIndexValues=[1, number + 1])],
            )
            place = common if shared else frame
            place.PlaneOrientationSequence = [item(ImageOrientationPatient=decimals(self.cosines.ravel()))]
            place.PixelMeasuresSequence = [item(PixelSpacing=decimals(self.spacing), SliceThickness=2.0)]
            tags.PerFrameFunctionalGroupsSequence.append(frame)
        tags.SharedFunctionalGroupsSequence = [common]
        return tags


def image_tags(kind: str, pixels: np.ndarray, series: str, changes: dict) -> FileDataset:
    """A file of `series`; a change to None removes a tag."""
    bits = 8 * pixels.dtype.itemsize
    values = {
        "SOPClassUID": kind, "SOPInstanceUID": generate_uid(), "StudyInstanceUID": STUDY, "SeriesInstanceUID": series,
        "FrameOfReferenceUID": SPACE, "Modality": "MR", "ImageType": ["ORIGINAL", "PRIMARY", "M"], "EchoTime": 90,
        "StudyDate": "20240102", "StudyTime": "030405", "StudyID": "S1", "AccessionNumber": "A1", "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2", "Rows": pixels.shape[-2], "Columns": pixels.shape[-1],
        "BitsAllocated": bits, "BitsStored": bits, "HighBit": bits - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"), "PixelData": np.ascontiguousarray(pixels).tobytes(),
        **PATIENT, **changes,
    }  # fmt: skip
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID(kind), values["SOPInstanceUID"]
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    tags = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    tags.update(item(**{keyword: value for keyword, value in values.items() if value is not None}))
    return tags


def head(slices: int, rows: int, columns: int, dtype="int16", seed: int = 0) -> np.ndarray:
    """[slice, row, column]: no two planes, rows or columns alike."""
    return np.random.default_rng(seed).integers(1, 900, (slices, rows, columns)).astype(dtype)


def decimals(values) -> list[str]:
    return [pydicom.valuerep.format_number_as_ds(float(value)) for value in values]


def item(**tags) -> Dataset:
    made = Dataset()
    for keyword, value in tags.items():
        setattr(made, keyword, value)
    return made


def write(path: Path, tags: FileDataset) -> Path:
    path.write_bytes(as_bytes(tags))
    return path


def as_bytes(tags: FileDataset) -> bytes:
    buffer = io.BytesIO()
    tags.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def zipped(folder: Path, path: Path, before: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, before + file.relative_to(folder).as_posix())
    return path
