"""Scores per lesion of 3D masks: lesion-wise DICE and HD95 (BraTS), lesion F1 (ISLES, ATLAS), panoptic quality.

Masks are given as labels [i, j, k] of their parts from 1, with a margin of background (0).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.surfaces import Distances, Spacing, Surface, find_surface, neighbours

PENALTY_MM = 374.0  # HD95 of what has no counterpart, as in BraTS: the diagonal of its images, rounded up
DILATIONS = 3  # parts of the true mask whose dilations touch are one lesion, as in BraTS 2023 on gliomas
IGNORED_MM3 = 50.0  # true lesions up to this volume are not scored there
MAX_PAIRS = 2 * 10**7  # of components: noise rather than masks
MATCH_IOU = 0.5  # panoptic quality: components match above this; no component can then match two
TOUCHING = ndimage.generate_binary_structure(3, 3)  # at a face, an edge or a corner


@dataclass(frozen=True)
class Lesion:
    """A true lesion, or a predicted component that is near none."""

    kind: str  # found, missed or false
    volume_ml: float  # of the lesion, or of the false component
    predicted_ml: float  # of the predicted components matched to it
    dice: float
    hd95_mm: float
    counted: bool  # False: too small to be scored
    centre: tuple[float, float, float]  # of its surface, voxel index


@dataclass(frozen=True)
class LabelledMask:
    labels: np.ndarray
    spacing: Spacing
    start: np.ndarray  # [3], index of the first voxel in the whole scan

    @functools.cached_property
    def voxels(self) -> np.ndarray:
        """[n], flat indices."""
        return np.flatnonzero(self.labels > 0)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[parts], voxels."""
        return np.bincount(self.labels.ravel()[self.voxels])[1:]

    @functools.cached_property
    def surface(self) -> Surface:
        return find_surface(self.labels, self.spacing)

    @property
    def voxel_ml(self) -> float:
        return math.prod(self.spacing) / 1000

    @functools.cached_property
    def centres(self) -> np.ndarray:
        """[parts, 3]: mean position of the surface of each part, voxel index in the whole scan."""
        labels, points = self.surface.labels, self.surface.points
        sums = np.stack([np.bincount(labels, place) for place in points.T], axis=1)
        return (sums / np.maximum(np.bincount(labels), 1)[:, None] / self.spacing + 0.5 + self.start)[1:]


def find_components(mask: np.ndarray) -> np.ndarray:
    """Labels of voxels that are connected by faces, edges or corners."""
    labels, _ = ndimage.label(mask, TOUCHING)
    return labels


def count_overlaps(ours: LabelledMask, theirs: np.ndarray) -> np.ndarray:
    """[our parts, their parts], voxels in both; `theirs` are labels."""
    rows, columns = len(ours.sizes) + 1, int(theirs.max()) + 1
    if rows * columns > MAX_PAIRS:
        raise EvaluationError(
            f"{rows - 1} predicted and {columns - 1} true components are too many to match; remove the smallest first"
        )
    pairs = ours.labels.ravel()[ours.voxels] * columns + theirs.ravel()[ours.voxels]
    return np.bincount(pairs, minlength=rows * columns).reshape(rows, columns)[1:, 1:]


# ---- ISLES, ATLAS, panoptic quality ----------------------------------------------------------------------------------


def lesion_f1(overlaps: np.ndarray) -> float:
    """A lesion is found, and a predicted component is right, if they share a voxel with the other mask."""
    detected, false = int(overlaps.any(axis=0).sum()), int((~overlaps.any(axis=1)).sum())
    total = detected + overlaps.shape[1] + false
    return 2 * detected / total if total else 1.0


def panoptic_quality(overlaps: np.ndarray, predicted_sizes: np.ndarray, truth_sizes: np.ndarray) -> float:
    """Sum of the IoU of matched components over the mean of the numbers of predicted and true components."""
    n_components = sum(overlaps.shape)
    iou = overlaps / np.maximum(predicted_sizes[:, None] + truth_sizes - overlaps, 1)
    return float(2 * iou[iou > MATCH_IOU].sum() / n_components) if n_components else 1.0


# ---- BraTS -----------------------------------------------------------------------------------------------------------


def merge_lesions(truth: np.ndarray) -> np.ndarray:
    """Labels of a dilated mask, whose components are the lesions."""
    dilated = truth > 0
    for _ in range(DILATIONS):
        dilated = _dilate(dilated)
    return find_components(dilated)


def _dilate(mask: np.ndarray) -> np.ndarray:
    """By 18 neighbours at faces and edges: a square of 3 x 3 voxels in each of the three planes."""
    lines = _spread(mask, 0), _spread(mask, 1)
    return _spread(lines[0], 1) | _spread(lines[0] | lines[1], 2)


def _spread(mask: np.ndarray, axis: int) -> np.ndarray:
    """With the voxels before and after."""
    wide = mask.copy()
    (before, after), (wide_before, wide_after) = neighbours(mask, axis), neighbours(wide, axis)
    wide_before |= after
    wide_after |= before
    return wide


def measure_lesions(
    predicted: LabelledMask, lesions: LabelledMask, dilated: np.ndarray, distances: Distances | None
) -> list[Lesion]:
    """True lesions, then false components. `dilated` has the labels of the lesions; `distances` are between the two
    surfaces, None without both."""
    matches = count_overlaps(predicted, dilated) > 0  # [component, lesion]
    common = count_overlaps(predicted, lesions.labels).sum(axis=0)
    sizes = np.stack([lesions.sizes, matches.T @ predicted.sizes, common], axis=1)  # [lesion, 3]
    measured = []
    for label, (size, predicted_size, shared) in enumerate(sizes.tolist(), start=1):
        matched = np.flatnonzero(matches[:, label - 1]) + 1
        hd95_mm = PENALTY_MM
        if distances is not None and len(matched):
            hd95_mm = distances.of_parts(matched, label).hd95()
        lesion = Lesion(
            kind="found" if len(matched) else "missed",
            volume_ml=size * lesions.voxel_ml,
            predicted_ml=predicted_size * lesions.voxel_ml,
            dice=2 * shared / (size + predicted_size),
            hd95_mm=hd95_mm,
            counted=size * lesions.voxel_ml * 1000 > IGNORED_MM3,
            centre=tuple(lesions.centres[label - 1].tolist()),
        )
        measured.append(lesion)
    for part in np.flatnonzero(~matches.any(axis=1)):
        volume_ml = float(predicted.sizes[part]) * predicted.voxel_ml
        centre = tuple(predicted.centres[part].tolist())
        measured.append(Lesion("false", volume_ml, volume_ml, 0.0, PENALTY_MM, True, centre))
    return measured


def lesion_wise(lesions: list[Lesion]) -> tuple[float, float]:
    """Mean DICE and HD95 over counted lesions and false components; 1 and 0 mm without any."""
    counted = [lesion for lesion in lesions if lesion.counted]
    if not counted:
        return 1.0, 0.0
    dices, distances = [lesion.dice for lesion in counted], [lesion.hd95_mm for lesion in counted]
    return sum(dices) / len(counted), sum(distances) / len(counted)
