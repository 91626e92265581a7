"""Lesions one by one: connected parts of a mask in the scan's own space."""

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

TOUCHING = np.ones((3, 3, 3), dtype=bool)


@dataclass(frozen=True)
class Finding:
    number: int  # the largest is 1
    volume_ml: float
    centre_mm: tuple[float, float, float]  # scanner coordinates, to the right, anterior, superior
    peak: float  # of the anomaly map
    peak_mm: tuple[float, float, float]


def find_lesions(mask: np.ndarray, anomaly_map: np.ndarray, affine: np.ndarray) -> list[Finding]:
    """mask and map [i, j, k]; the affine takes voxel indices to scanner millimetres."""
    components, count = ndimage.label(mask, TOUCHING)
    voxel_ml = abs(float(np.linalg.det(affine[:3, :3]))) / 1000
    found = []
    for number, box in enumerate(ndimage.find_objects(components, count), start=1):
        inside = components[box] == number
        start = np.array([part.start for part in box])
        places = np.argwhere(inside) + start  # [n, 3]
        values = anomaly_map[box][inside]
        found.append(
            (
                len(places) * voxel_ml,
                _millimetres(places.mean(axis=0), affine),
                float(values.max()),
                _millimetres(places[values.argmax()], affine),
            )
        )
    found.sort(key=lambda one: (-one[0], one[1]))
    return [Finding(number, *one) for number, one in enumerate(found, start=1)]


def _millimetres(place: np.ndarray, affine: np.ndarray) -> tuple[float, float, float]:
    x, y, z = affine[:3, :3] @ place + affine[:3, 3]
    return float(x), float(y), float(z)
