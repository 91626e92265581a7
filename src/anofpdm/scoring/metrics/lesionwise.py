"""Scores per lesion of 3D masks: lesion-wise DICE and HD95 (BraTS), lesion F1 (ISLES, ATLAS), panoptic quality.

Masks are given as labels [i, j, k] of their parts from 1, with a margin of background (0).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.surfaces import Spacing, Surface, find_surface, measure_distances

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

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[parts], voxels."""
        return np.bincount(self.labels[self.labels > 0])[1:]

    @functools.cached_property
    def surface(self) -> Surface:
        return find_surface(self.labels, self.spacing)

    @property
    def voxel_ml(self) -> float:
        return math.prod(self.spacing) / 1000

    @functools.cached_property
    def centres(self) -> np.ndarray:
        """[parts, 3]: mean position of the surface of each part."""
        labels, cells = self.surface.labels, self.surface.cells
        sums = np.stack([np.bincount(labels, place) for place in cells.T], axis=1)
        return (sums / np.maximum(np.bincount(labels), 1)[:, None] + 0.5)[1:]


def find_components(mask: np.ndarray) -> np.ndarray:
    """Labels of voxels that are connected by faces, edges or corners."""
    labels, _ = ndimage.label(mask, TOUCHING)
    return labels


def count_overlaps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[our parts, their parts], voxels in both."""
    rows, columns = int(ours.max()) + 1, int(theirs.max()) + 1
    if rows * columns > MAX_PAIRS:
        raise EvaluationError(
            f"{rows - 1} predicted and {columns - 1} true components are too many to match; remove the smallest first"
        )
    common = (ours > 0) & (theirs > 0)
    pairs = ours[common] * columns + theirs[common]
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


def find_lesions(predicted: LabelledMask, truth: LabelledMask) -> list[Lesion]:
    """True lesions, then false components: of predicted components, and of true components by any labels."""
    dilated = truth.labels > 0
    for _ in range(DILATIONS):
        dilated = _dilate(dilated)
    dilated = find_components(dilated)
    lesions = LabelledMask(np.where(truth.labels, dilated, 0), truth.spacing)
    matches = count_overlaps(predicted.labels, dilated) > 0  # [component, lesion]
    overlaps = count_overlaps(predicted.labels, lesions.labels)
    return [
        *(
            _measure_lesion(predicted, lesions, label, np.flatnonzero(column) + 1, int(common[column].sum()))
            for label, (column, common) in enumerate(zip(matches.T, overlaps.T, strict=True), start=1)
        ),
        *(_false_component(predicted, int(row) + 1) for row in np.flatnonzero(~matches.any(axis=1))),
    ]


def _dilate(mask: np.ndarray) -> np.ndarray:
    """By 18 neighbours at faces and edges: a square of 3 x 3 voxels in each of the three planes."""
    lines = _spread(mask, 0), _spread(mask, 1)
    return _spread(lines[0], 1) | _spread(lines[0] | lines[1], 2)


def _spread(mask: np.ndarray, axis: int) -> np.ndarray:
    return mask | np.roll(mask, 1, axis) | np.roll(mask, -1, axis)


def _measure_lesion(
    predicted: LabelledMask, lesions: LabelledMask, label: int, matched: np.ndarray, common: int
) -> Lesion:
    """`matched`: labels of predicted components that touch the dilated lesion; `common`: their voxels in the lesion."""
    size, predicted_size = int(lesions.sizes[label - 1]), int(predicted.sizes[matched - 1].sum())
    hd95_mm = PENALTY_MM
    if len(matched):
        surfaces = predicted.surface.of_parts(matched), lesions.surface.of_parts(label)
        hd95_mm = measure_distances(*surfaces, lesions.spacing).hd95()
    return Lesion(
        kind="found" if len(matched) else "missed",
        volume_ml=size * lesions.voxel_ml,
        predicted_ml=predicted_size * lesions.voxel_ml,
        dice=2 * common / (size + predicted_size),
        hd95_mm=hd95_mm,
        counted=size * lesions.voxel_ml * 1000 > IGNORED_MM3,
        centre=tuple(lesions.centres[label - 1].tolist()),
    )


def _false_component(predicted: LabelledMask, label: int) -> Lesion:
    volume_ml = float(predicted.sizes[label - 1]) * predicted.voxel_ml
    return Lesion("false", volume_ml, volume_ml, 0.0, PENALTY_MM, True, tuple(predicted.centres[label - 1].tolist()))


def lesion_wise(lesions: list[Lesion]) -> tuple[float, float]:
    """Mean DICE and HD95 over counted lesions and false components; 1 and 0 mm without any."""
    counted = [lesion for lesion in lesions if lesion.counted]
    if not counted:
        return 1.0, 0.0
    dices, distances = [lesion.dice for lesion in counted], [lesion.hd95_mm for lesion in counted]
    return sum(dices) / len(counted), sum(distances) / len(counted)
