"""Scores of 3D masks against MONAI, surface-distance and scipy, and lesion-wise scores against examples by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai import metrics as monai
from scipy import ndimage
from surface_distance import lookup_tables
from surface_distance import metrics as deepmind

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.lesionwise import PENALTY_MM
from anofpdm.scoring.metrics.scan import score_masks
from anofpdm.scoring.metrics.surfaces import element_areas

SPACINGS = [(1.0, 1.0, 1.0), (0.9, 0.9, 5.5), (3.1, 0.7, 1.3)]
TOUCHING = np.ones((3, 3, 3))
EIGHTEEN = ndimage.generate_binary_structure(3, 2)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def shapes(seed, shape=(26, 30, 22), smooth=1.6, share=0.06):
    """Two random masks that overlap in part, also at the sides of the array."""
    rng = np.random.default_rng(seed)
    base, change = (ndimage.gaussian_filter(rng.normal(size=shape), smooth) for _ in range(2))
    fields = base, base + 0.5 * change
    return tuple(field > np.quantile(field, 1 - share) for field in fields)


def tensors(*masks):
    return (torch.from_numpy(mask[None, None].astype(np.float32)) for mask in masks)


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("seed", range(2))
class TestAgainstOtherCode:
    def test_surface_distance(self, seed, spacing):
        predicted, truth = shapes(seed)
        distances = deepmind.compute_surface_distances(truth, predicted, spacing)
        scores = score_masks(predicted, truth, spacing)
        assert scores.hd95_mm == pytest.approx(deepmind.compute_robust_hausdorff(distances, 95))
        areas = distances["surfel_areas_gt"].sum(), distances["surfel_areas_pred"].sum()
        means = deepmind.compute_average_surface_distance(distances)
        assert scores.surface_distance_mm == pytest.approx(np.average(means, weights=areas))
        for tolerance, ours in ((1, scores.surface_dice_1mm), (2, scores.surface_dice_2mm)):
            assert ours == pytest.approx(deepmind.compute_surface_dice_at_tolerance(distances, tolerance))

    def test_monai(self, seed, spacing):
        predicted, truth = shapes(seed)
        a, b = tensors(predicted, truth)
        scores = score_masks(predicted, truth, spacing)
        assert scores.dice == pytest.approx(monai.compute_dice(a, b).item())
        assert scores.iou == pytest.approx(monai.compute_iou(a, b).item())
        counts = monai.get_confusion_matrix(a, b)
        for name in ("precision", "recall"):
            ours = getattr(scores, name)
            assert ours == pytest.approx(monai.compute_confusion_matrix_metric(name, counts).item())
        labels = [torch.from_numpy(ndimage.label(mask, TOUCHING)[0]) for mask in (predicted, truth)]
        quality = monai.compute_panoptic_quality(*labels, match_iou_threshold=0.5)
        assert scores.panoptic_quality == pytest.approx(quality.item(), abs=1e-5)

    def test_lesion_wise_by_definition(self, seed, spacing):
        """The published definition, step by step on whole arrays."""
        predicted, truth = shapes(seed, (50, 54, 40), smooth=1.2, share=0.004)
        dice, hd95 = lesion_wise_by_definition(predicted, truth, spacing)
        scores = score_masks(predicted, truth, spacing)
        assert len(scores.lesions) > 5
        assert {lesion.counted for lesion in scores.lesions} == {True, False}
        assert scores.lesion_dice == pytest.approx(dice)
        assert scores.lesion_hd95_mm == pytest.approx(hd95)


def lesion_wise_by_definition(predicted, truth, spacing):
    merged = ndimage.label(ndimage.binary_dilation(truth, EIGHTEEN, 3), TOUCHING)[0] * truth
    parts, n_parts = ndimage.label(predicted, TOUCHING)
    matched, dices, hd95s = set(), [], []
    for number in np.unique(merged[truth]):
        lesion = merged == number
        touched = np.unique(parts[ndimage.binary_dilation(lesion, EIGHTEEN, 3) & predicted])
        matched |= set(touched)
        if lesion.sum() * math.prod(spacing) <= 50:
            continue
        drawn = np.isin(parts, touched) & predicted
        dices.append(2 * (drawn & lesion).sum() / (drawn.sum() + lesion.sum()))
        distances = deepmind.compute_surface_distances(lesion, drawn, spacing)
        hd95s.append(deepmind.compute_robust_hausdorff(distances, 95) if drawn.any() else 374)
    false = n_parts - len(matched)
    return np.mean(dices + [0] * false), np.mean(hd95s + [374] * false)


def boxes(*corners, shape=(40, 40, 40)):
    """bool, each box from a corner, with an edge of so many voxels."""
    mask = np.zeros(shape, dtype=bool)
    for (i, j, k), edge in corners:
        mask[i : i + edge, j : j + edge, k : k + edge] = True
    return mask


class TestLesionsByHand:
    """Voxels of 1 mm; boxes of 4 voxels have 64 mm3, which counts, of 3 have 27 mm3, which does not."""

    def test_one_found_one_missed_one_false(self):
        truth = boxes(((2, 2, 2), 4), ((20, 20, 20), 4))
        predicted = boxes(((2, 2, 2), 4), ((34, 2, 2), 2))
        scores = score_masks(predicted, truth, (1, 1, 1))
        assert [lesion.kind for lesion in scores.lesions] == ["found", "missed", "false"]
        assert scores.lesion_dice == pytest.approx((1 + 0 + 0) / 3)
        assert scores.lesion_hd95_mm == pytest.approx((0 + 374 + 374) / 3)
        assert scores.lesion_f1 == pytest.approx(1 / (1 + (1 + 1) / 2))
        assert scores.panoptic_quality == pytest.approx(1 / (1 + (1 + 1) / 2))
        assert scores.dice == pytest.approx(2 * 64 / (128 + 72))
        counts = scores.lesions_predicted, scores.lesions_truth, scores.lesion_count_difference
        assert counts == (2, 2, 0)

    @pytest.mark.parametrize(("gap", "lesions"), [(6, 1), (7, 2)])
    def test_parts_whose_dilations_touch_are_one_lesion(self, gap, lesions):
        """Three dilations from each side reach over a gap of six voxels."""
        truth = boxes(((2, 2, 2), 4), ((2, 2, 2 + 4 + gap), 4))
        scores = score_masks(boxes(((2, 2, 2), 4)), truth, (1, 1, 1))
        assert len(scores.lesions) == lesions
        assert scores.lesion_dice == pytest.approx(2 * 64 / (64 + 128) if lesions == 1 else (1 + 0) / 2)
        assert scores.lesions_truth == 2  # ISLES does not merge them

    @pytest.mark.parametrize(("gap", "kinds"), [(2, ["found"]), (3, ["missed", "false"])])
    def test_a_component_within_three_voxels_is_matched(self, gap, kinds):
        """Without a common voxel its DICE is 0, but its distance is measured."""
        truth, predicted = boxes(((2, 2, 2), 4)), boxes(((2, 2, 2 + 4 + gap), 4))
        scores = score_masks(predicted, truth, (1, 1, 1))
        assert [lesion.kind for lesion in scores.lesions] == kinds
        assert scores.lesion_dice == 0
        assert scores.lesion_hd95_mm == (6 if kinds == ["found"] else 374)

    def test_centres_and_volumes(self):
        truth = boxes(((2, 5, 11), 4))
        for copy in (np.ascontiguousarray, np.asfortranarray):
            scores = score_masks(copy(boxes()), copy(truth), (1, 2, 3))
            (lesion,) = scores.lesions
            assert lesion.centre == pytest.approx((3.5, 6.5, 12.5))
            assert lesion.volume_ml == scores.truth_ml == pytest.approx(64 * 6 / 1000)


class TestEmptyMasks:
    def test_both(self):
        scores = score_masks(boxes(), boxes(), (1, 1, 1)).numbers()
        ones = [name for name, value in scores.items() if value == 1]
        assert ones == [
            "dice", "iou", "precision", "recall", "surface_dice_1mm", "surface_dice_2mm", "lesion_dice", "lesion_f1",
            "panoptic_quality",
        ]  # fmt: skip
        assert all(value == 0 for name, value in scores.items() if name not in ones)

    @pytest.mark.parametrize("empty", ["predicted", "truth"])
    def test_one(self, empty):
        lesion = boxes(((2, 2, 2), 4))
        masks = {"predicted": lesion, "truth": lesion, empty: boxes()}
        scores = score_masks(masks["predicted"], masks["truth"], (1, 1, 1))
        zero = ("dice", "iou", "surface_dice_1mm", "surface_dice_2mm", "lesion_dice", "lesion_f1", "panoptic_quality")
        assert all(getattr(scores, name) == 0 for name in zero)
        assert (scores.hd95_mm, scores.lesion_hd95_mm) == (PENALTY_MM, PENALTY_MM) == (374, 374)
        assert math.isnan(scores.surface_distance_mm)
        assert math.isnan(scores.precision) == (empty == "predicted")
        assert math.isnan(scores.recall) == (empty == "truth")
        assert scores.lesion_count_difference == 1
        assert scores.difference_ml == pytest.approx(0.064 if empty == "truth" else -0.064)
        if empty == "truth":
            assert math.isnan(scores.relative_difference)
        else:
            assert scores.relative_difference == -1


@given(seed=st.integers(0, 10**6), order=st.permutations((0, 1, 2)), flips=st.tuples(*[st.booleans()] * 3))
def test_scores_do_not_depend_on_the_orientation(seed, order, flips):
    predicted, truth = shapes(seed, (14, 12, 16))
    spacing = np.array((1.0, 0.8, 3.3))
    expected = score_masks(predicted, truth, tuple(spacing)).numbers()
    axes = tuple(axis for axis in range(3) if flips[axis])
    predicted, truth = (np.flip(mask, axes).transpose(order) for mask in (predicted, truth))
    turned = score_masks(predicted, truth, tuple(spacing[list(order)])).numbers()
    assert turned == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_areas_of_surface_elements(spacing):
    theirs = lookup_tables.create_table_neighbour_code_to_surface_area(spacing)
    reversed_bits = [int(f"{code:08b}"[::-1], 2) for code in range(256)]
    assert element_areas(spacing) == pytest.approx(theirs[reversed_bits])


def test_masks_that_cannot_be_scored():
    mask = boxes()
    with pytest.raises(EvaluationError, match="must match"):
        score_masks(mask, mask[1:], (1, 1, 1))
    with pytest.raises(EvaluationError, match="boolean"):
        score_masks(mask.astype(np.uint8), mask, (1, 1, 1))
    for spacing in ((1, 1), (1, 1, 0), (1, 1, math.nan)):
        with pytest.raises(EvaluationError, match="voxel sizes"):
            score_masks(mask, mask, spacing)
