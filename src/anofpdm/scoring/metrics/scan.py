"""Scores of a whole scan: two 3D masks on one grid, in millimetres. docs/score.md defines each.

Undefined scores are NaN. `score_masks` takes masks in memory, and needs numpy and scipy only.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.lesionwise import (
    DILATIONS,
    PENALTY_MM,
    LabelledMask,
    Lesion,
    count_overlaps,
    find_components,
    lesion_f1,
    lesion_wise,
    measure_lesions,
    merge_lesions,
    panoptic_quality,
)
from anofpdm.scoring.metrics.pixels import check_masks
from anofpdm.scoring.metrics.surfaces import Distances, Spacing, measure_distances

MARGIN = DILATIONS + 1  # of background around both masks


@dataclass(frozen=True)
class ScanScores:
    """The defaults are the scores of two empty masks: nothing to find, and nothing found."""

    dice: float = 1.0
    iou: float = 1.0
    precision: float = 1.0  # NaN without a prediction, if there is a lesion
    recall: float = 1.0  # NaN without a lesion, if there is a prediction
    truth_ml: float = 0.0
    predicted_ml: float = 0.0
    difference_ml: float = 0.0  # predicted minus true
    relative_difference: float = 0.0  # of the true volume; NaN without a lesion, if there is a prediction
    hd95_mm: float = 0.0  # PENALTY_MM if one mask is empty
    surface_distance_mm: float = 0.0  # mean; NaN if one mask is empty
    surface_dice_1mm: float = 1.0
    surface_dice_2mm: float = 1.0
    lesion_dice: float = 1.0  # lesion-wise, BraTS
    lesion_hd95_mm: float = 0.0
    lesion_f1: float = 1.0  # ISLES, ATLAS
    lesions_truth: int = 0  # connected components
    lesions_predicted: int = 0
    lesion_count_difference: int = 0  # absolute
    panoptic_quality: float = 1.0
    lesions: tuple[Lesion, ...] = ()

    def numbers(self) -> dict[str, float]:
        """All scores by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "lesions"}


def score_masks(predicted: np.ndarray, truth: np.ndarray, spacing_mm: Spacing) -> ScanScores:
    """bool [i, j, k] each, on one grid; `spacing_mm` is the voxel size along each array axis."""
    check_masks(predicted, truth)
    if truth.ndim != 3 or len(spacing_mm) != 3 or not all(0 < edge < math.inf for edge in spacing_mm):
        raise EvaluationError(f"masks must be 3D with three voxel sizes, got {truth.shape} and {spacing_mm} mm")
    i, j, k = (float(edge) for edge in spacing_mm)
    either = (predicted | truth).view(np.uint8)  # a maximum of bytes is far quicker than `any`
    filled = [np.flatnonzero(either.max(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    if not len(filled[0]):
        return ScanScores()
    box = tuple(slice(places[0], places[-1] + 1) for places in filled)
    start = np.array([part.start - MARGIN for part in box])
    labels = (find_components(np.pad(mask[box], MARGIN)) for mask in (predicted, truth))
    return _score(*(LabelledMask(parts, (i, j, k), start) for parts in labels))


def _score(ours: LabelledMask, theirs: LabelledMask) -> ScanScores:
    """Of components of the predicted and of the true mask."""
    overlaps, dilated = count_overlaps(ours, theirs.labels), merge_lesions(theirs.labels)
    merged = dataclasses.replace(theirs, labels=np.where(theirs.labels, dilated, 0))
    distances = None
    if len(ours.sizes) and len(theirs.sizes):
        distances = measure_distances(ours.surface, merged.surface)
    lesions = measure_lesions(ours, merged, dilated, distances)
    predicted, truth, common = int(ours.sizes.sum()), int(theirs.sizes.sum()), int(overlaps.sum())
    lesion_dice, lesion_hd95 = lesion_wise(lesions)
    return ScanScores(
        dice=2 * common / (predicted + truth),
        iou=common / (predicted + truth - common),
        precision=common / predicted if predicted else math.nan,
        recall=common / truth if truth else math.nan,
        truth_ml=truth * ours.voxel_ml,
        predicted_ml=predicted * ours.voxel_ml,
        difference_ml=(predicted - truth) * ours.voxel_ml,
        relative_difference=(predicted - truth) / truth if truth else math.nan,
        **_surface_scores(distances),
        lesion_dice=lesion_dice,
        lesion_hd95_mm=lesion_hd95,
        lesion_f1=lesion_f1(overlaps),
        lesions_truth=len(theirs.sizes),
        lesions_predicted=len(ours.sizes),
        lesion_count_difference=abs(len(ours.sizes) - len(theirs.sizes)),
        panoptic_quality=panoptic_quality(overlaps, ours.sizes, theirs.sizes),
        lesions=tuple(lesions),
    )


def _surface_scores(distances: Distances | None) -> dict[str, float]:
    names = ("hd95_mm", "surface_distance_mm", "surface_dice_1mm", "surface_dice_2mm")
    scores = (PENALTY_MM, math.nan, 0.0, 0.0)  # one mask is empty
    if distances is not None:
        scores = distances.hd95(), distances.mean(), distances.dice(1), distances.dice(2)
    return dict(zip(names, scores, strict=True))
