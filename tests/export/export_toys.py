"""A student exported, against `anofpdm segment` on the same files."""

from pathlib import Path

import nibabel as nib
import numpy as np

from anofpdm.segment.result import Segmentation

MAX_GAP = 1e-4  # of probabilities
AXES = np.array([[2, -1], [0, 1], [1, -1]])  # of a file whose array axes are not those of the phantom


def reorient(source: Path, target: Path) -> Path:
    """The same scan with its array axes permuted and two of them flipped, by nibabel."""
    image = nib.Nifti1Image.from_filename(source)
    nib.save(image.as_reoriented(AXES), target)
    return target


def canonical(image: nib.Nifti1Image) -> np.ndarray:
    return np.asarray(nib.as_closest_canonical(image).dataobj, dtype=np.float32)


def ours(result: Segmentation) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and mask, both with axes towards right, anterior and superior."""
    volumes = (result.anomaly_map, result.mask.astype(np.uint8))
    probability, mask = (canonical(nib.Nifti1Image(volume, result.grid.affine)) for volume in volumes)
    return probability, mask
