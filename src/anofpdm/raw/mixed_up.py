"""Whether the images of named series contradict their names: another contrast, or two that are exchanged.

All series of a study are decided together, by the likelihoods of contrast.py. The names count as evidence. T1 before
and after contrast agent, which images often do not tell apart, count as the same.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from anofpdm.errors import ConfigError, ContrastWarning, ScanError
from anofpdm.raw.contrast import (
    CONTRASTS,
    SURE,
    Likelihoods,
    compare_contrasts,
    enumerate_assignments,
    measure_stripped,
)
from anofpdm.scans.grid import Grid, bounding_box

NAMES_RIGHT = 0.99  # before the images are seen
LEAST_BRAIN_ML = 300.0  # parts of a brain may look like another contrast
LEAST_RANGE = 0.1  # logarithm, from the lower quarter to the bright voxels; less is no image of a brain
LOWER_QUARTER, BRIGHT = 7, 9  # among the measured numbers


def compare_slices(
    pixels: np.ndarray, modalities: Sequence[str], size_mm: tuple[float, float]
) -> dict[str, Likelihoods]:
    """Of the slices [n, C, H, W] of a stripped brain, in [-1, 1]; `size_mm` of a pixel, and between slices.

    Without those that cannot be measured: no whole brain, uniform, or nilearn is not installed.
    """
    named = [name for name in modalities if name in CONTRASTS]
    pixel_mm, spacing_mm = size_mm
    rows, columns = bounding_box(np.any(pixels > -1, axis=(0, 1)))
    volumes = [(pixels[:, modalities.index(name), rows, columns].transpose(2, 1, 0) + 1) / 2 for name in named]
    brain_ml = (pixels > -1).any(axis=1).sum() * pixel_mm**2 * spacing_mm / 1000
    if not volumes or brain_ml < LEAST_BRAIN_ML:
        return {}
    grid = Grid.from_affine(volumes[0].shape, np.diag([-pixel_mm, -pixel_mm, spacing_mm, 1.0]))
    try:
        measured = measure_stripped(volumes, grid)
    except (ScanError, ConfigError):
        return {}
    return {
        name: compare_contrasts(numbers)
        for name, numbers in zip(named, measured, strict=True)
        if numbers[BRIGHT] - numbers[LOWER_QUARTER] > LEAST_RANGE
    }


def find_mixed_up(series: Mapping[str, Likelihoods]) -> dict[str, tuple[str, float]]:
    """By the names under which the series were given, of those whose image clearly contradicts the name: what it looks
    like, and how probable it is that the name is wrong."""
    every: list[tuple[dict[str, str], float]] = []  # contrast by series
    for given, score in enumerate_assignments(series):
        right = all(same_contrast(name, contrast) for contrast, name in given.items())
        seen = {name: contrast for contrast, name in given.items()}
        every.append((seen, score + float(np.log(NAMES_RIGHT if right else 1 - NAMES_RIGHT))))
    total = np.logaddexp.reduce([score for _, score in every])
    best = max(every, key=lambda assigned: assigned[1])[0]
    if len(best) < len(series):  # an unusual image tells nothing of the others
        return {}
    wrong = {}
    for name in series:
        other = [score for seen, score in every if not same_contrast(seen.get(name), name)]
        share = float(np.exp(np.logaddexp.reduce(other) - total))
        if share >= SURE and not same_contrast(best[name], name):
            wrong[name] = (best[name], share)
    return wrong


def warn_mixed_up(series: Mapping[str, Likelihoods], files: Mapping[str, object]) -> bool:
    """Returns whether it warned."""
    wrong = find_mixed_up(series)
    if not wrong:
        return False
    looks = "; ".join(
        f"{files[name]} is given as {name}, but its image looks like {seen}" for name, (seen, _) in wrong.items()
    )
    exchanged = set(wrong) == {seen for seen, _ in wrong.values()}
    what = f"{' and '.join(wrong)} look exchanged: " if exchanged else ""
    sure = min(0.99, *(share for _, share in wrong.values()))
    warnings.warn(
        f"{what}{looks} (at least {sure:.0%} sure); check that no files are mixed up. "
        "The overlap with a manual mask (DICE) is not estimated",
        ContrastWarning,
        stacklevel=2,
    )
    return True


def same_contrast(name: str | None, other: str) -> bool:
    return name == other or {name, other} == {"t1", "t1ce"}
