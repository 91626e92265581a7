"""A FLAIR file as it should not be, or as it rarely is, and the means to make one."""

import gzip
import io
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

from faults.bad_files.base import AFFINE, SHAPE, UNUSUAL, ValidFiles

FIELDS = nib.Nifti1Header.template_dtype.fields
NAN, INF = float("nan"), float("inf")
DIM, SIZE = "8h", math.prod(SHAPE)  # struct code of the field dim; number of voxels
MIB = 1 << 20

Content = Callable[[ValidFiles], bytes]


@dataclass(frozen=True)
class Scan:
    name: str
    kind: str
    content: Content
    valid: bool = False
    suffix: str = ".nii"
    sparse: int = 0  # the file is extended to so many bytes, without using disk space

    def write(self, folder: Path, files: ValidFiles) -> str:
        path = folder / f"p_flair{self.suffix}"
        path.write_bytes(self.content(files))
        if self.sparse:
            os.truncate(path, self.sparse)
        return path.name


def valid(name: str, content: Content, suffix: str = ".nii") -> Scan:
    return Scan(name, UNUSUAL, content, True, suffix)


def compress(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def patch(at: int, code: str, *values: float | bytes) -> Content:
    def content(files: ValidFiles) -> bytes:
        data = bytearray(files.scan())
        struct.pack_into(f"<{code}", data, at, *values)
        return bytes(data)

    return content


def set_field(name: str, code: str, *values: float | bytes, index: int = 0) -> Content:
    return patch(FIELDS[name][1] + index * struct.calcsize(code[-1]), code, *values)


def to_nifti(array: np.ndarray, form: type = nib.Nifti1Image) -> bytes:
    """Written by nibabel, on the grid of the valid scan, in the byte order of `array`."""
    header = form.header_class(endianness=array.dtype.byteorder if array.dtype.byteorder in "<>" else "<")
    header.set_data_dtype(array.dtype)
    image = form(array, AFFINE, header, dtype=array.dtype)
    image.set_qform(AFFINE, code=1)
    image.set_sform(AFFINE, code=1)
    image.header.set_xyzt_units("mm")
    stream = io.BytesIO()
    image.to_stream(stream)
    return stream.getvalue()
