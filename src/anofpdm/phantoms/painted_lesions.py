"""Lesions of phantoms: a tumour with oedema and mass effect, or old strokes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from anofpdm.phantoms.anatomy import CENTRE, Head, Tissues, ramp
from anofpdm.phantoms.atlas import Atlas, Floats
from anofpdm.phantoms.tissue_contrast import Overlay

NECROSIS, OEDEMA, ENHANCING = 1, 2, 4  # as in BraTS21
TUMOUR_SIGNALS = {  # lowest and highest signal; a solid core does not enhance
    "oedema": {"flair": (1.5, 2.0), "t1": (0.72, 0.86), "t1ce": (0.72, 0.86), "t2": (1.7, 2.4)},
    "rim": {"flair": (1.2, 1.7), "t1": (0.7, 0.9), "t1ce": (1.5, 2.3), "t2": (1.4, 2.0)},
    "necrosis": {"flair": (0.5, 1.1), "t1": (0.42, 0.6), "t1ce": (0.42, 0.6), "t2": (2.2, 2.8)},
    "solid core": {"flair": (1.3, 1.8), "t1": (0.58, 0.74), "t1ce": (0.6, 0.75), "t2": (2.0, 2.6)},
}
MIN_AREA = 90.0  # mm²; slices with a smaller part of a lesion do not show it


@dataclass(frozen=True)
class Focus:
    centre: Floats  # [3] mm in the head
    radius: float  # mm
    stretch: float = 1.0  # extent towards the surface, relative to across
    height: float = 1.0  # relative to the width


Lesion = tuple[list[Overlay], NDArray[np.uint8]]  # and labels [N]


def tumour_foci(head: Head, atlas: Atlas) -> list[Focus]:
    """A core of one to three lobes in white matter; in 30% of patients a second core."""
    rng, voxels = head.rng, _white_matter_voxels(head, atlas)
    foci: list[Focus] = []
    for share in (1.0, 0.6) if rng.random() < 0.3 else (1.0,):
        centre = head.mm[:, rng.choice(voxels)]
        radius = share * rng.uniform(6, 19)
        foci.append(Focus(centre, radius))
        for _ in range(rng.integers(0, 3)):
            lobe = centre + rng.normal(0, 0.55 * radius, 3)
            foci.append(Focus(np.asarray(lobe, np.float32), radius * rng.uniform(0.5, 0.85)))
    return foci


def _white_matter_voxels(head: Head, atlas: Atlas) -> NDArray[np.intp]:
    wm = atlas.wm.at(head.mni)
    x, y, z = head.mni
    cerebrum = (z > -25) & ((y > -35) | (z > -8))
    voxels = np.flatnonzero((wm > 0.6) & (head.depth > 10) & (np.abs(x) > 9) & cerebrum)
    return voxels if voxels.size else np.array([np.argmax(wm)])  # on a very coarse grid there may be none


def displace(head: Head, foci: Sequence[Focus], push: float) -> Floats:
    """MNI positions [3, N] of the tissue at each voxel after every focus has pushed the anatomy outwards (or inwards,
    for a negative push)."""
    mni = head.mni.copy()
    for focus in foci:
        offset = head.mm - focus.centre[:, None]
        away = np.sqrt((offset**2).sum(0)) / (1.3 * focus.radius)
        mni -= push * offset / 1.3 * np.exp(1 - away) * ramp(head.depth, 0, 8) / np.e
    return mni


def _edge_distance(head: Head, foci: Sequence[Focus], falx: float) -> Floats:
    """Distance [N] in mm to the nearest focus, negative inside it; crossing the midline adds `falx`."""
    nearest = np.full(head.mm.shape[1], np.inf, np.float32)
    for focus in foci:
        outward = focus.centre - np.array(CENTRE, np.float32)
        outward = outward / np.linalg.norm(outward)
        offset = (head.mm - focus.centre[:, None]) / np.array([[1], [1], [focus.height]], np.float32)
        along = sum(offset[axis] * outward[axis] for axis in range(3))
        across = np.maximum((offset**2).sum(0) - along**2, 0)
        other_side = ramp(head.mni[0] * np.sign(focus.centre[0]), 1, -2)  # beyond the falx
        nearest = np.minimum(nearest, np.sqrt(across + (along / focus.stretch) ** 2) - focus.radius + falx * other_side)
    return nearest


def grow_tumour(head: Head, tissues: Tissues, foci: Sequence[Focus]) -> Lesion:
    rng = head.rng
    size = max(focus.radius for focus in foci)
    distance = _edge_distance(head, foci, 9.0) + 0.16 * size * head.noise(14.0) + 0.8 * head.noise(6.0)
    core = ramp(distance, 0.8, -0.8) * ramp(tissues.ventricle, -2, 0)
    enhances = rng.random() < 0.8
    thickness = np.clip(rng.uniform(0.25, 0.7) * size, 2.5, 7) * (1 + 0.45 * head.noise(9.0))
    centre = ramp(distance + thickness, 0.8, -0.8) if enhances else np.ones_like(core)
    swelling = rng.uniform(10, 26)
    fluid = _oedema_share(head, tissues, distance, swelling)
    shares = np.stack([core * centre, fluid, core * (1 - centre)])
    shares = shares * _visible(head, (core > 0.5) | (fluid > 0.5), distance < 0)
    labels = np.zeros(distance.shape, np.uint8)
    labels[shares[1] > 0.5] = OEDEMA
    solid = shares[0] + shares[2] > 0.5
    labels[solid] = np.where(shares[0] >= shares[2], NECROSIS, ENHANCING)[solid]
    signals = {part: _draw_signals(rng, limits) for part, limits in TUMOUR_SIGNALS.items()}
    fading = 0.6 + 0.4 * ramp(distance, 0.9 * swelling, 0.2 * swelling)
    patchy = np.clip(0.85 + 0.22 * head.noise(9.0), 0.5, 1) * fading  # oedema is heterogeneous
    return [
        Overlay(shares[1] * patchy, signals["oedema"]),
        Overlay(shares[0], signals["necrosis" if enhances else "solid core"]),
        Overlay(shares[2], signals["rim"]),
    ], labels


def _oedema_share(head: Head, tissues: Tissues, distance: Floats, swelling: float) -> Floats:
    """Oedema spreads far in white matter, little in cortex and not into the ventricles."""
    ease = 0.18 * tissues.gm + tissues.wm
    reach = swelling * ease * np.exp(0.4 * head.noise(12.0) + 0.15 * head.noise(5.0))
    share = ramp(reach - distance, -1.0, 2.0) * (1 - 0.8 * tissues.csf)
    smooth = ndimage.gaussian_filter(head.spread(share), [0.9 / step for step in head.grid.spacing])
    return head.pick(smooth) * ramp(tissues.ventricle, -1, 0.5)


def _visible(head: Head, lesion: NDArray[np.bool_], seed: NDArray[np.bool_]) -> Floats:
    """1 on components that contain a seed, in slices where they are large enough, dilated by a voxel; else 0."""
    components, _ = ndimage.label(head.spread(lesion))
    kept = np.unique(components[head.spread(seed & lesion)])
    whole = np.isin(components, kept[kept > 0])
    area = whole.sum((0, 1)) * head.grid.spacing[0] * head.grid.spacing[1]
    whole &= area >= MIN_AREA
    dilated = ndimage.binary_dilation(whole, np.ones((3, 3, 1)))
    return head.pick(dilated.astype(np.float32))


def _draw_signals(rng: np.random.Generator, limits: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    return {modality: rng.uniform(low, high) for modality, (low, high) in limits.items()}


def stroke_foci(head: Head, atlas: Atlas) -> list[Focus]:
    """One to three infarcts: wedges of cortex and underlying white matter, or small deep ones."""
    rng, deep_voxels = head.rng, _white_matter_voxels(head, atlas)
    shallow_voxels = np.flatnonzero((head.depth > 6) & (head.depth < 22) & (head.mni[2] > -20))
    foci = []
    for _ in range(rng.choice([1, 2, 3], p=[0.2, 0.3, 0.5])):
        if rng.random() < 0.75:
            centre = head.mm[:, rng.choice(shallow_voxels)]
            radius = math.exp(rng.uniform(math.log(10), math.log(22)))
            foci.append(Focus(centre, radius, stretch=rng.uniform(1.2, 2.0), height=rng.uniform(1.1, 2.0)))
        else:
            foci.append(Focus(head.mm[:, rng.choice(deep_voxels)], rng.uniform(7, 12)))
    return foci


def grow_stroke(head: Head, tissues: Tissues, foci: Sequence[Focus]) -> Lesion:
    rng = head.rng
    size = np.mean([focus.radius for focus in foci])
    distance = _edge_distance(head, foci, 40.0) + 0.3 * size * head.noise(18.0) + head.noise(6.0)
    soft = rng.uniform(1.5, 3.5)
    share = ramp(distance, soft, -soft) * ramp(tissues.ventricle, -2, 0)
    share = share * _visible(head, share > 0.5, distance < -1)
    labels = (share > 0.5).astype(np.uint8)
    patchy = np.clip(0.8 + 0.2 * head.noise(8.0), 0.45, 1)
    overlays = [Overlay(share * patchy, {"t1": rng.uniform(0.61, 0.74)})]
    if rng.random() < 0.15:  # old, with a central cyst
        overlays.append(Overlay(ramp(distance, -3, -3 - 2 * soft) * share, {"t1": rng.uniform(0.42, 0.54)}))
    return overlays, labels
