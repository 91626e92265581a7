"""Example slices: S_t and the gradient at some noise levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anofpdm.evaluation.ablations.levels import LesionSlices, LevelMeasurements
from anofpdm.evaluation.ablations.study import Study
from anofpdm.evaluation.ablations.tables import Ablation, table_rows

N_SLICES, N_LEVELS = 4, 6


@dataclass(frozen=True)
class Gallery:
    pixels: np.ndarray  # [n, H, W], the first scored modality
    lesions: np.ndarray  # bool [n, H, W]
    captions: list[str]
    levels: tuple[int, ...]
    tiles: np.ndarray  # [n, 2, levels + 1, H, W]


def choose_levels(levels: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """The levels nearest to those wanted; by default some, evenly spaced."""
    available = np.array(levels)
    fractions = np.arange(1, N_LEVELS + 1) / N_LEVELS
    spread = available[np.maximum(np.round(fractions * len(available)).astype(int) - 1, 0)]
    targets = np.array(wanted or spread)
    nearest = available[np.abs(available[None] - targets[:, None]).argmin(axis=1)]
    return tuple(int(level) for level in np.unique(nearest))


def choose_slices(sizes: np.ndarray, scans: np.ndarray) -> tuple[int, ...]:
    """The largest lesion and some smaller ones, from different scans if possible."""
    by_size, chosen = np.argsort(sizes, kind="stable"), list[int]()
    for place in np.linspace(1, 0.25, min(N_SLICES, len(sizes))) * (len(sizes) - 1):
        nearest = by_size[np.argsort(np.abs(np.arange(len(sizes)) - place), kind="stable")]
        left = [int(number) for number in nearest if number not in chosen]
        chosen.append(next((number for number in left if scans[number] not in scans[chosen]), left[0]))
    return tuple(chosen)


def gallery_table(study: Study, slices: LesionSlices) -> Ablation:
    chosen = list(slices.gallery)
    rows = slices.rows[chosen]
    sizes = slices.lesions[chosen].sum(axis=(1, 2))
    summary = (
        "S_t and the gradient (e_h - e_0)^2 of example slices, with the input and the lesion mask. Each tile has its "
        "own scale; the last column is the slice's own end step."
    )
    table = table_rows(study.cohort.scans[rows], study.cohort.indices[rows], sizes, slices.end_step[chosen])
    return Ablation("gallery", summary, ("scan", "slice", "pixels", "end_step"), table)


def build_gallery(study: Study, slices: LesionSlices, measurements: LevelMeasurements) -> Gallery:
    chosen, table = list(slices.gallery), gallery_table(study, slices)
    channel = study.calibrated.calibration.settings.channels[0]
    captions = [f"{scan}, slice {index}: lesion of {size} pixels, t_e = {end}" for scan, index, size, end in table.rows]
    pixels = study.cohort.pixels(slices.rows[chosen])[:, channel]
    return Gallery(pixels, slices.lesions[chosen], captions, slices.gallery_levels, measurements.tiles)
