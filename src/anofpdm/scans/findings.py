"""Findings: connected components of the lesion mask in the scan's native space."""

from dataclasses import dataclass

import numpy as np
from nibabel.affines import apply_affine
from scipy import ndimage

from anofpdm.scans.grid import bounding_box

CONNECTIVITY = np.ones((3, 3, 3), dtype=bool)  # 26 neighbours


@dataclass(frozen=True)
class Finding:
    number: int  # 1 is the largest
    volume_ml: float
    centre_mm: tuple[float, float, float]  # scanner coordinates: right, anterior, superior are positive
    peak: float  # maximum of the anomaly map
    peak_mm: tuple[float, float, float]


def find_lesions(mask: np.ndarray, anomaly_map: np.ndarray, affine: np.ndarray) -> list[Finding]:
    """mask and map [i, j, k]; the affine takes voxel indices to scanner millimetres."""
    if not mask.any():
        return []
    whole = bounding_box(mask)
    corner = np.array([part.start for part in whole])
    components, count = ndimage.label(mask[whole], CONNECTIVITY)
    anomaly_map = anomaly_map[whole]
    voxel_ml = abs(float(np.linalg.det(affine[:3, :3]))) / 1000
    lesions = []
    for number, box in enumerate(ndimage.find_objects(components, count), start=1):
        inside = components[box] == number
        start = corner + [part.start for part in box]
        voxels = np.argwhere(inside) + start  # [n, 3]
        values = anomaly_map[box][inside]
        lesions.append(
            (
                len(voxels) * voxel_ml,
                tuple(apply_affine(affine, voxels.mean(axis=0)).tolist()),
                float(values.max()),
                tuple(apply_affine(affine, voxels[values.argmax()]).tolist()),
            )
        )
    lesions.sort(key=lambda lesion: (-lesion[0], lesion[1]))
    return [Finding(number, *lesion) for number, lesion in enumerate(lesions, start=1)]
