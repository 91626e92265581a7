"""From tissues to scans: contrast, normal hyperintensities, bias field, texture and noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anofpdm.phantoms.anatomy import Head, Tissues, ramp
from anofpdm.phantoms.atlas import Floats

# Grey matter and CSF, relative to white matter.
SIGNALS = {"flair": (1.23, 0.36), "t1": (0.73, 0.32), "t1ce": (0.82, 0.40), "t2": (1.45, 2.90)}
BRIGHT_CORTEX = (  # MNI centre (mirrored) and radii in mm: grey matter that is brighter than the rest on FLAIR
    ((38, 4, 0), (9, 20, 14)),  # insula
    ((5, 30, 18), (8, 16, 18)),  # anterior cingulate
    ((5, -15, 40), (8, 30, 10)),  # middle and posterior cingulate
    ((25, -14, -18), (10, 20, 10)),  # hippocampus and amygdala
    ((6, 30, -14), (9, 22, 8)),  # gyrus rectus
)
IRON = (((19, -4, -1), (6, 9, 6)), ((6, -20, -9), (5, 5, 5)))  # pallidum, red nucleus: dark on T2 and FLAIR
TRACTS = (((25, -18, 14), (5, 8, 16)), ((27, -45, 22), (9, 18, 10)))  # corticospinal, parietal: faintly bright on FLAIR
CAPS = (((17, 33, 6), (9, 9, 11)), ((28, -58, 10), (10, 14, 11)))  # white matter at the tips of the ventricles
PLEXUS = (((21, -40, 10), (7, 7, 8)),)


@dataclass(frozen=True)
class Overlay:
    """Replaced tissue: the fraction `share` [N] of each voxel has `signal`, relative to white matter."""

    share: Floats
    signal: Mapping[str, float]


def _near(mni: Floats, regions: Sequence[tuple[tuple[float, ...], tuple[float, ...]]]) -> Floats:
    """1 at the centre of any of these regions, on both sides of the head, 0 far from all of them."""
    x, y, z = mni
    closest = np.zeros(mni.shape[1], np.float32)
    for (cx, cy, cz), (rx, ry, rz) in regions:
        closeness = np.exp(-(((np.abs(x) - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 + ((z - cz) / rz) ** 2))
        closest = np.maximum(closest, closeness)
    return closest


def normal_overlays(head: Head, tissues: Tissues) -> list[Overlay]:
    """Normal findings: periventricular caps, white-matter hyperintensities of age, vessels, choroid plexus."""
    rng = head.rng
    age = rng.beta(1.6, 2.2)
    rim = np.exp(-np.maximum(tissues.ventricle, 0) / rng.uniform(1.5, 3.0 + 2.5 * age))
    tips = _near(tissues.mni, CAPS) * np.exp(-np.maximum(tissues.ventricle, 0) / 7)
    caps = np.clip((0.3 + 0.7 * age) * rim + (0.5 + 0.6 * age) * tips, 0, 1) * (tissues.wm + 0.4 * tissues.gm)
    patchy = np.clip(0.8 + 0.3 * head.noise(8.0), 0, 1.2)
    old = {"flair": rng.uniform(1.35, 1.65), "t1": rng.uniform(0.8, 0.9), "t1ce": 0.9, "t2": rng.uniform(1.4, 1.9)}
    overlays = [Overlay(np.clip(caps * patchy, 0, 1), old)]
    spots = _age_spots(head, tissues, count=int(rng.poisson(1 + 9 * age)))
    overlays.append(Overlay(spots, {**old, "flair": old["flair"] * 1.05}))
    plexus = _near(tissues.mni, PLEXUS) * ramp(-tissues.ventricle, -1, 1) * (head.noise(4.0) > -0.2)
    overlays.append(Overlay(0.8 * plexus, {"flair": 1.1, "t1": 0.7, "t1ce": rng.uniform(1.4, 2.0), "t2": 2.0}))
    vessels = {"flair": 0.6, "t1": 0.75, "t1ce": rng.uniform(1.5, 2.1), "t2": 0.9}
    overlays.append(Overlay(_vessel_shares(head, tissues), vessels))
    return overlays


def _age_spots(head: Head, tissues: Tissues, count: int) -> Floats:
    """White-matter hyperintensities: small, blurred, deep, mostly near the ventricles."""
    rng, share = head.rng, np.zeros(head.mm.shape[1], np.float32)
    weight = tissues.wm * ramp(head.depth, 10, 18) * (0.1 + np.exp(-np.maximum(tissues.ventricle, 0) / 12))
    weight = weight.astype(np.float64) * (tissues.ventricle > 1)
    cumulative = np.cumsum(weight)
    for _ in range(count):
        centre = head.mm[:, int(np.searchsorted(cumulative, rng.random() * cumulative[-1]))]
        radius = rng.uniform(1.8, 4.5)
        away = np.sqrt(sum((head.mm[axis] - centre[axis]) ** 2 for axis in range(3)))
        share = np.maximum(share, rng.uniform(0.5, 1.0) * ramp(away, radius * 1.4, radius * 0.5))
    return share * tissues.wm


def _vessel_shares(head: Head, tissues: Tissues) -> Floats:
    """Vessels in the sulci, at the zeros of two random fields; the sagittal sinus at the top of the midline."""
    x, y, z = tissues.mni
    crossing = np.abs(head.noise(9.0)) + np.abs(head.noise(9.0))
    shallow = ramp(head.depth, 22, 8)
    vessels = ramp(crossing, 0.36, 0.14) * shallow * np.clip(tissues.csf + 0.6 * tissues.gm, 0, 1)
    sinus = ramp(np.abs(x), 6, 3) * ramp(head.depth, 4.5, 2) * ramp(z - 0.8 * y, 10, 30)
    dura = ramp(head.depth, 2.6, 1.2) * ramp(head.noise(14.0), 0.9, 1.5)
    return np.clip(vessels + sinus + dura, 0, 1)


def render(
    head: Head, tissues: Tissues, overlays: Sequence[Overlay], modalities: Sequence[str]
) -> dict[str, NDArray[np.int16]]:
    """One scan [x, y, z] per modality."""
    texture = head.noise(3.5)
    common_bias = head.noise(85.0)
    scans = {}
    for modality in modalities:
        signal = _healthy_signal(head.rng, modality, tissues)
        for overlay in overlays:
            kept = 0.25 * (signal - 1)  # the anatomy stays visible under a lesion
            signal = signal + overlay.share * (overlay.signal[modality] + kept - signal)
        signal = signal * (1 + 0.02 * texture + 0.015 * head.noise(3.5))
        signal = signal * _bias(head, common_bias)
        scans[modality] = _digitise(head, signal)
    return scans


def _healthy_signal(rng: np.random.Generator, modality: str, tissues: Tissues) -> Floats:
    mni, is_flair = tissues.mni, modality == "flair"
    grey, fluid = np.array(SIGNALS[modality]) * np.exp(rng.normal(0, [0.05, 0.12]))
    deep = ramp(tissues.ventricle, 26, 14) * ramp(np.abs(mni[0]), 38, 30)  # basal ganglia and thalamus
    brightness = 1 + rng.uniform(0.10, 0.30) * _near(mni, BRIGHT_CORTEX) if is_flair else np.ones(1)
    gm = grey * brightness - deep * 0.3 * (grey - 1)
    wm = 1 + (rng.uniform(0.04, 0.16) * _near(mni, TRACTS) if is_flair else 0)
    signal = tissues.gm * gm + tissues.wm * wm + tissues.csf * fluid
    if is_flair or modality == "t2":
        signal = signal * (1 - rng.uniform(0.1, 0.25) * _near(mni, IRON))
    return np.asarray(signal, np.float32)


def _bias(head: Head, common: Floats) -> Floats:
    """Smooth multiplicative bias, partly common to the scans of a patient, and the sensitivity of a surface coil."""
    own = head.noise(85.0)
    shine = head.rng.uniform(-0.05, 0.14) * np.exp(-head.depth / 18)
    return np.exp(0.06 * common + 0.07 * own + shine)


def _digitise(head: Head, signal: Floats) -> NDArray[np.int16]:
    """Magnitude of a noisy complex signal, as integers: above 0 in the brain, exactly 0 outside."""
    rng = head.rng
    level = rng.uniform(0.02, 0.04)
    real, imaginary = level * rng.standard_normal((2, len(signal)), dtype=np.float32)
    magnitude = np.sqrt((signal + real) ** 2 + imaginary**2) * rng.uniform(250, 900)
    return head.spread(np.clip(np.rint(magnitude), 1, 32000).astype(np.int16))
