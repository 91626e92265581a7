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
    find_lesions,
    lesion_f1,
    lesion_wise,
    panoptic_quality,
)
from anofpdm.scoring.metrics.pixels import check_masks
from anofpdm.scoring.metrics.surfaces import Spacing, measure_distances

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
    flipped = truth.flags.f_contiguous  # as read from a file; in memory order, everything is quicker
    if flipped:
        predicted, truth, i, k = predicted.T, truth.T, k, i
    either = predicted | truth
    if not either.any():
        return ScanScores()
    filled = [np.flatnonzero(either.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    box = tuple(slice(places[0], places[-1] + 1) for places in filled)
    ours, theirs = (LabelledMask(find_components(np.pad(mask[box], MARGIN)), (i, j, k)) for mask in (predicted, truth))
    scores = _score(ours, theirs)
    start = [part.start - MARGIN for part in box]
    lesions = tuple(_shift_centre(lesion, start, reverse=flipped) for lesion in scores.lesions)
    return dataclasses.replace(scores, lesions=lesions)


def _score(ours: LabelledMask, theirs: LabelledMask) -> ScanScores:
    """Of components of the predicted and of the true mask."""
    overlaps, lesions = count_overlaps(ours.labels, theirs.labels), find_lesions(ours, theirs)
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
        **_surface_scores(ours, theirs),
        lesion_dice=lesion_dice,
        lesion_hd95_mm=lesion_hd95,
        lesion_f1=lesion_f1(overlaps),
        lesions_truth=len(theirs.sizes),
        lesions_predicted=len(ours.sizes),
        lesion_count_difference=abs(len(ours.sizes) - len(theirs.sizes)),
        panoptic_quality=panoptic_quality(overlaps, ours.sizes, theirs.sizes),
        lesions=tuple(lesions),
    )


def _surface_scores(ours: LabelledMask, theirs: LabelledMask) -> dict[str, float]:
    names = ("hd95_mm", "surface_distance_mm", "surface_dice_1mm", "surface_dice_2mm")
    if not len(ours.sizes) or not len(theirs.sizes):
        return dict(zip(names, (PENALTY_MM, math.nan, 0.0, 0.0), strict=True))
    distances = measure_distances(ours.surface, theirs.surface, ours.spacing)
    scores = distances.hd95(), distances.mean(), distances.dice(1), distances.dice(2)
    return dict(zip(names, scores, strict=True))


def _shift_centre(lesion: Lesion, start: list[int], *, reverse: bool) -> Lesion:
    """From an index in the crop to one in the whole array."""
    i, j, k = (np.array(lesion.centre) + start).tolist()
    return dataclasses.replace(lesion, centre=(k, j, i) if reverse else (i, j, k))
