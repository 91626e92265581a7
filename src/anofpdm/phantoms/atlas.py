"""The average brain that phantoms are derived from: MNI152 tissue maps of the nilearn package."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from anofpdm.errors import CohortError

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

COARSE = 2  # mm; distances are smooth, so that a coarser grid than that of the tissues is enough
MARGIN = 6  # voxels of background around the head


@dataclass(frozen=True)
class Map:
    """A map in MNI space."""

    values: Floats  # [x, y, z], axes to the right, front and top
    first: Floats  # [3] position of voxel (0, 0, 0) in mm
    spacing: int = 1  # mm

    def at(self, mni: Floats) -> Floats:
        """Values at positions [3, ...] in mm, 0 off the map."""
        voxels = (mni - self.first.reshape(3, *[1] * (mni.ndim - 1))) / self.spacing
        return ndimage.map_coordinates(self.values, voxels, order=1)


@dataclass(frozen=True)
class Atlas:
    brain: Map  # smoothed, so that its 0.5 isosurface is smooth
    gm: Map  # 0..1
    wm: Map  # 0..1
    depth: Map  # mm below the brain surface
    ventricle: Map  # mm to the lateral ventricles, negative inside
    from_ventricle: tuple[Map, Map, Map]  # direction away from the ventricles: the smoothed gradient of `ventricle`


@lru_cache(maxsize=1)
def load_atlas() -> Atlas:
    brain, gm, wm, first = _read_maps()
    depth = _distance_inside(brain[::COARSE, ::COARSE, ::COARSE] > 0.5)
    cavity = _lateral_ventricles(brain - gm - wm, depth, first)
    ventricle = ndimage.gaussian_filter(_distance_inside(~cavity) - _distance_inside(cavity), 1.0)
    # Smoothed, because the direction flips halfway between two horns, which would disrupt the anatomy.
    x, y, z = (ndimage.gaussian_filter(slope, 2.5) for slope in np.gradient(ventricle, COARSE))
    return Atlas(
        brain=Map(ndimage.gaussian_filter(brain, 1.0), first),
        gm=Map(gm, first),
        wm=Map(wm, first),
        depth=Map(depth, first, COARSE),
        ventricle=Map(ventricle, first, COARSE),
        from_ventricle=(Map(x, first, COARSE), Map(y, first, COARSE), Map(z, first, COARSE)),
    )


def _read_maps() -> tuple[Floats, Floats, Floats, Floats]:
    """Brain, grey and white matter, cropped to the head, and the position of the first voxel."""
    try:
        from nilearn import datasets
    except ImportError as missing:
        raise CohortError(
            "phantoms need the brain atlas of nilearn, which is not installed; run pip install 'anofpdm[demo]'"
        ) from missing
    image = datasets.load_mni152_brain_mask(resolution=1)
    brain = np.asarray(image.dataobj, np.float32)
    head = ndimage.find_objects((brain > 0.5).astype(np.int8))[0]
    gm = np.asarray(datasets.load_mni152_gm_template(resolution=1).dataobj, np.float32)
    wm = np.asarray(datasets.load_mni152_wm_template(resolution=1).dataobj, np.float32)
    brain, gm, wm = (np.pad(tissue[head], MARGIN) for tissue in (brain, gm, wm))
    first = image.affine[:3, 3] + [side.start - MARGIN for side in head]
    return brain, gm, wm, np.asarray(first, np.float32)


def _distance_inside(region: Bools) -> Floats:
    """Distance in mm from each voxel of the region, on the coarse grid, to the nearest one outside it."""
    return np.asarray(ndimage.distance_transform_edt(region, COARSE), np.float32)


def _lateral_ventricles(csf: Floats, depth: Floats, first: Floats) -> Bools:
    """The two largest deep CSF regions next to the midline, on the coarse grid."""
    fluid = csf[::COARSE, ::COARSE, ::COARSE]
    x, y, z = np.ogrid[tuple(slice(n) for n in fluid.shape)]
    x, y, z = x * COARSE + first[0], y * COARSE + first[1], z * COARSE + first[2]
    region = (depth > 16) & (abs(x) > 2) & (abs(x) < 40) & (z > -20) & (z < 34) & (y > -60) & (y < 40)
    cistern = (abs(x) < 14) & (y < -24) & (z < 8)
    pools, count = ndimage.label((fluid > 0.4) & region & ~cistern)
    sizes = ndimage.sum_labels(np.ones_like(fluid), pools, np.arange(1, count + 1))
    return np.isin(pools, 1 + np.argsort(sizes)[-2:])
