"""A FLAIR file as it should not be, or as it rarely is, and the means to make one."""

import gzip
import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np

from faults.bad_files.base import AFFINE, Change

FIELDS = nib.Nifti1Header.template_dtype.fields
NAN, INF = float("nan"), float("inf")
MIB = 1 << 20
GZ = ".nii.gz"


@dataclass(frozen=True)
class Scan:
    name: str
    content: Change  # from the bytes of the valid .nii file
    valid: bool = False
    suffix: str = ".nii"
    sparse: int = 0  # the file is extended to so many bytes, without using disk space

    @property
    def path(self) -> str:
        return f"scan/p_flair{self.suffix}"

    def edit(self, valid: Path) -> None:
        """Takes the place of the valid file."""
        data = gzip.decompress(valid.read_bytes())
        valid.unlink()
        path = valid.with_name(f"p_flair{self.suffix}")
        path.write_bytes(self.content(data))
        if self.sparse:
            os.truncate(path, self.sparse)


def compress(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def set_field(name: str, code: str, *values: float | bytes, index: int = 0) -> Change:
    at = FIELDS[name][1] + index * struct.calcsize(code[-1])

    def content(data: bytes) -> bytes:
        changed = bytearray(data)
        struct.pack_into(f"<{code}", changed, at, *values)
        return bytes(changed)

    return content


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


def voxels_of(data: bytes) -> np.ndarray:
    return np.asarray(nib.Nifti1Image.from_bytes(data).dataobj)
