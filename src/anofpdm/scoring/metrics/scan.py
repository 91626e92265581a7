"""Scores of a whole scan: two 3D masks on one grid, in millimetres. docs/score.md defines each.

Undefined scores are NaN. `score_masks` takes masks in memory, and needs numpy and scipy only.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.components import find_components
from anofpdm.scoring.metrics.lesionwise import (
    BRATS,
    PENALTY_MM,
    LabelledMask,
    Lesion,
    LesionRule,
    MaskPair,
    find_lesions,
    lesion_f1,
    lesion_wise,
    panoptic_quality,
)
from anofpdm.scoring.metrics.pixels import check_masks
from anofpdm.scoring.metrics.surfaces import (
    Distances,
    Spacing,
    find_surface,
    hausdorff,
    mean_distance,
    surface_dice,
)


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


def score_masks(predicted: np.ndarray, truth: np.ndarray, spacing_mm: Spacing, rule: LesionRule = BRATS) -> ScanScores:
    """bool [i, j, k] each, on one grid; `spacing_mm` is the voxel size along each array axis."""
    check_masks(predicted, truth)
    if truth.ndim != 3 or len(spacing_mm) != 3 or not all(0 < edge < math.inf for edge in spacing_mm):
        raise EvaluationError(f"masks must be 3D with three voxel sizes, got {truth.shape} and {spacing_mm} mm")
    i, j, k = (float(edge) for edge in spacing_mm)
    flipped = truth.flags.f_contiguous  # as read from a file; in memory order, everything is quicker
    if flipped:
        predicted, truth, i, k = predicted.T, truth.T, k, i
    box = _bounding_box(predicted, truth)
    if box is None:
        return ScanScores()
    margin, spacing = rule.dilations + 1, (i, j, k)
    ours, theirs = (_label_parts(_pad(mask[box], margin), spacing) for mask in (predicted, truth))
    scores = _score(MaskPair(ours, theirs, spacing), rule)
    start = np.array([part.start - margin for part in box])
    lesions = tuple(_shift_centre(lesion, start, reverse=flipped) for lesion in scores.lesions)
    return dataclasses.replace(scores, lesions=lesions)


def _bounding_box(a: np.ndarray, b: np.ndarray) -> tuple[slice, ...] | None:
    """Of both masks together; None if both are empty. A maximum of bytes is far quicker than `any`."""
    planes = [mask.view(np.uint8).reshape(len(mask), -1).max(axis=1) for mask in (a, b)]
    first = _extent(planes[0] | planes[1])
    if first is None:
        return None
    flat = a[first].view(np.uint8).max(axis=0) | b[first].view(np.uint8).max(axis=0)  # [j, k]
    rest = _extent(flat.max(axis=1)), _extent(flat.max(axis=0))
    return tuple(part for part in (first, *rest) if part is not None)


def _extent(filled: np.ndarray) -> slice | None:
    places = np.flatnonzero(filled)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else None


def _pad(mask: np.ndarray, margin: int) -> np.ndarray:
    """With background at each side; the last axis becomes a multiple of 8."""
    shape = [length + 2 * margin for length in mask.shape]
    padded = np.zeros((shape[0], shape[1], -(-shape[2] // 8) * 8), dtype=bool)
    padded[tuple(slice(margin, margin + length) for length in mask.shape)] = mask
    return padded


def _label_parts(mask: np.ndarray, spacing: Spacing) -> LabelledMask:
    return LabelledMask(mask, find_components(mask), find_surface(mask, spacing))


def _score(pair: MaskPair, rule: LesionRule) -> ScanScores:
    ours, theirs, overlaps = pair.predicted.components, pair.truth.components, pair.overlaps
    predicted, truth, common = len(ours.voxels), len(theirs.voxels), int(overlaps.sum())
    voxel_ml, lesions = math.prod(pair.spacing) / 1000, find_lesions(pair, rule)
    lesion_dice, lesion_hd95 = lesion_wise(lesions)
    return ScanScores(
        dice=2 * common / (predicted + truth),
        iou=common / (predicted + truth - common),
        precision=common / predicted if predicted else math.nan,
        recall=common / truth if truth else math.nan,
        truth_ml=truth * voxel_ml,
        predicted_ml=predicted * voxel_ml,
        difference_ml=(predicted - truth) * voxel_ml,
        relative_difference=(predicted - truth) / truth if truth else math.nan,
        **_surface_scores(pair.distances),
        lesion_dice=lesion_dice,
        lesion_hd95_mm=lesion_hd95,
        lesion_f1=lesion_f1(overlaps),
        lesions_truth=theirs.count,
        lesions_predicted=ours.count,
        lesion_count_difference=abs(ours.count - theirs.count),
        panoptic_quality=panoptic_quality(overlaps, ours.sizes, theirs.sizes),
        lesions=tuple(lesions),
    )


def _surface_scores(distances: tuple[Distances, Distances] | None) -> dict[str, float]:
    if distances is None:
        hd95, mean, dice = PENALTY_MM, math.nan, (0.0, 0.0)
    else:
        hd95, mean = hausdorff(*distances), mean_distance(*distances)
        dice = surface_dice(*distances, 1), surface_dice(*distances, 2)
    return {
        "hd95_mm": hd95, "surface_distance_mm": mean, "surface_dice_1mm": dice[0], "surface_dice_2mm": dice[1],
    }  # fmt: skip


def _shift_centre(lesion: Lesion, start: np.ndarray, *, reverse: bool) -> Lesion:
    """From an index in the crop to one in the whole array."""
    i, j, k = (np.array(lesion.centre) + start).tolist()
    return dataclasses.replace(lesion, centre=(k, j, i) if reverse else (i, j, k))
