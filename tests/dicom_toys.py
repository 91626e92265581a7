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
        """[3] RAS: equation C.7.6.2.1-1 of PS3.3, written out, with x and y turned."""
        x, y = self.cosines
        (delta_j, delta_i), place = self.spacing, self.position(number)
        matrix = np.array([
            [x[0] * delta_i, y[0] * delta_j, 0, place[0]],
            [x[1] * delta_i, y[1] * delta_j, 0, place[1]],
            [x[2] * delta_i, y[2] * delta_j, 0, place[2]],
            [0, 0, 0, 1],
        ])  # fmt: skip
        left, back, up, _ = matrix @ (column, row, 0, 1)
        return np.array([-left, -back, up])

    def slice(self, number: int, **changes) -> FileDataset:
        changes = {**self.tags, **changes}
        tags = image_tags(MRImageStorage, self.voxels[number], self.uid, changes)
        tags.InstanceNumber = number + 1
        for keyword, value in {
            "ImageOrientationPatient": decimals(self.cosines.ravel()),
            "ImagePositionPatient": decimals(self.position(number)),
            "PixelSpacing": decimals(self.spacing),
            "SliceThickness": 2.0,
        }.items():
            if keyword not in changes:
                setattr(tags, keyword, value)
        return tags

    def save(self, folder: Path, prefix: str = "IM", *, without=(), **changes) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(len(self.voxels)):
            if number not in without:
                write(folder / f"{prefix}{number:03d}.dcm", self.slice(number, **changes))
        return folder

    def enhanced(self, order=None, *, shared: bool = True) -> FileDataset:
        """All slices as frames of one file, in `order`."""
        order = list(range(len(self.voxels))) if order is None else order
        tags = image_tags(EnhancedMRImageStorage, self.voxels[order], self.uid, self.tags)
        tags.NumberOfFrames = len(order)
        common, tags.PerFrameFunctionalGroupsSequence = Dataset(), []
        for number in order:
            frame = Dataset()
            frame.PlanePositionSequence = [item(ImagePositionPatient=decimals(self.position(number)))]
            place = common if shared else frame
            place.PlaneOrientationSequence = [item(ImageOrientationPatient=decimals(self.cosines.ravel()))]
            place.PixelMeasuresSequence = [item(PixelSpacing=decimals(self.spacing), SliceThickness=2.0)]
            frame.FrameContentSequence = [item(DimensionIndexValues=[1, number + 1])]
            tags.PerFrameFunctionalGroupsSequence.append(frame)
        tags.SharedFunctionalGroupsSequence = [common]
        return tags


def image_tags(kind: str, pixels: np.ndarray, series: str, changes: dict) -> FileDataset:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID(kind), generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    tags = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    tags.SOPClassUID, tags.SOPInstanceUID = kind, meta.MediaStorageSOPInstanceUID
    tags.StudyInstanceUID, tags.SeriesInstanceUID, tags.FrameOfReferenceUID = STUDY, series, SPACE
    tags.Modality, tags.ImageType, tags.EchoTime = "MR", ["ORIGINAL", "PRIMARY", "M"], 90
    tags.StudyDate, tags.StudyTime, tags.StudyID, tags.AccessionNumber = "20240102", "030405", "S1", "A1"
    tags.SamplesPerPixel, tags.PhotometricInterpretation = 1, "MONOCHROME2"
    tags.Rows, tags.Columns = pixels.shape[-2:]
    tags.BitsAllocated = tags.BitsStored = 8 * pixels.dtype.itemsize
    tags.HighBit, tags.PixelRepresentation = tags.BitsStored - 1, int(pixels.dtype.kind == "i")
    tags.PixelData = np.ascontiguousarray(pixels).tobytes()
    for keyword, value in {**PATIENT, **changes}.items():
        if value is None:
            if keyword in tags:
                delattr(tags, keyword)
        else:
            setattr(tags, keyword, value)
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
