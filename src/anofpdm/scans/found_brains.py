"""Brains that were found earlier in the same run, when series were chosen by their images."""

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import nibabel as nib
import numpy as np

from anofpdm.scans.nifti import Volume


@dataclass(frozen=True)
class FoundBrains:
    """By the content of the series: a DICOM series is known again after its conversion to NIfTI."""

    packed: Mapping[str, bytes] = field(default_factory=dict)  # compressed bits: some kilobytes per series

    @classmethod
    def of(cls, pairs: Iterable[tuple[Volume, np.ndarray]]) -> "FoundBrains":
        return cls({_content(volume): zlib.compress(np.packbits(brain).tobytes()) for volume, brain in pairs})

    def get(self, volume: Volume) -> np.ndarray | None:
        """bool [i, j, k]"""
        packed = self.packed.get(_content(volume)) if self.packed else None
        if packed is None:
            return None
        bits = np.unpackbits(np.frombuffer(zlib.decompress(packed), np.uint8), count=volume.voxels.size)
        return bits.reshape(volume.voxels.shape).astype(bool)


NO_BRAINS = FoundBrains()


@dataclass(frozen=True)
class Assignment:
    """Series of a study, chosen by their images."""

    series: Mapping[str, str] = field(default_factory=dict)  # by modality
    brains: FoundBrains = NO_BRAINS  # of these series


def _content(volume: Volume) -> str:
    """Hash of what brain extraction depends on: values, shape and orientation."""
    layout = f"{volume.voxels.shape} {nib.aff2axcodes(volume.grid.affine)}"
    values = np.ascontiguousarray(volume.voxels, dtype=np.float32)
    return hashlib.sha256(layout.encode() + values.tobytes()).hexdigest()
