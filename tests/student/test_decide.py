"""The decision on logits drawn by hand, against scipy and closed forms, and in a whole segmentation."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import ndimage

from anofpdm.errors import ConfigError
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import CurveDetector
from anofpdm.report.display import average_estimate
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.student.decide import (
    LOWEST,
    MaskChoices,
    drop_unlinked,
    label_components,
    lower_thresholds,
    map_scans,
    outline_levels,
    smooth,
    soft_dice,
)
from anofpdm.student.student import Student
from tests import toys
from tests.optional_toys import make_student

BY_SLICE = CurveDetector(np.zeros(2), np.ones(2), np.array([0.0, 1.0]), offset=0.0, strength=1.0)


def slices(*regions, nothing=-9.0, size=40):
    """Slices with squares: (first row, last row, logit)."""
    images = torch.full((len(regions), size, size), nothing)
    for image, squares in zip(images, regions, strict=True):
        for first, last, value in squares:
            image[first:last, first:last] = value
    return images


def random_masks(seed, shape=(6, 20, 20)):
    return torch.from_numpy(np.random.default_rng(seed).random(shape) < 0.4)


def student_with(*, size=128, choices=None, **changes) -> Student:
    """Detects slices by their own logit; slices are not smoothed."""
    toy = make_student(size=size)
    calibration = replace(toy.calibration, detector=BY_SLICE, context_mm=0.0, detection_mm=(0.0, 0.0), **changes)
    return replace(toy, calibration=calibration, choices=choices or MaskChoices())


def decide(student, logits, slice_logits, positions=None):
    """Both predictions are the same."""
    passes, slice_passes = (np.stack([np.float32(part)] * 2, axis=1) for part in (logits, slice_logits))
    return student.decide_from(passes, slice_passes, positions or SlicePositions.unrelated(len(passes)))


class TestComponents:
    @pytest.mark.parametrize("across", [True, False])
    def test_they_are_those_of_scipy(self, across):
        spiral = np.zeros((1, 24, 30), bool)
        spiral[0, 1::4], spiral[0, 3::8, -1], spiral[0, 7::8, 0], spiral[0, 1:-1, 28] = True, True, True, True
        random = np.random.default_rng(0).random((5, 24, 30))
        near = np.ones((3, 3, 3), int)
        near[[0, 2]] *= across
        for image in (random < 0.05, random < 0.15, random < 0.4, random < 0.6, spiral, np.zeros_like(spiral)):
            expected, count = ndimage.label(image, near)
            labels = label_components(torch.from_numpy(image), across).numpy()
            pairs = np.unique(np.stack([expected.ravel(), labels.ravel()]), axis=1)
            assert pairs.shape[1] == len(np.unique(labels)) == count + 1
            np.testing.assert_array_equal(labels > 0, image)

    def test_small_ones_are_kept_where_they_continue_a_lesion(self):
        large, small, elsewhere = (10, 20, 1.0), (12, 15, 1.0), (30, 33, 1.0)
        above = slices([small], [small], [large, elsewhere], [small, elsewhere], [], [small]) > 0
        kept, has_large = drop_unlinked(above, 40)
        assert torch.equal(kept, slices([small], [small], [large], [small], [], []) > 0)
        assert has_large.tolist() == [False, False, True, False, False, False]

    def test_the_order_of_rows_does_not_matter_and_scans_are_apart(self):
        """Of five slices, the last two are beside another scan's lesion."""
        above = (slices(*[[(12, 15, 1.0)]] * 2, [(10, 20, 1.0)], *[[(12, 15, 1.0)]] * 2) > 0).numpy()
        order = np.array([3, 0, 4, 2, 1])
        positions = SlicePositions((order > 2).astype(int), 2.0 * order)
        shuffled, _ = map_scans(lambda some, _: drop_unlinked(some, 40), positions, above[order])
        np.testing.assert_array_equal(shuffled, (above & (np.arange(5) < 3)[:, None, None])[order])

    def test_small_ones_alone_must_be_detected_clearly(self):
        logits = slices([(12, 15, 1.0)], [(10, 20, 1.0)], [(12, 15, 1.0)], [(10, 20, 1.0)])
        scores = np.array([0.4, 0.1, 0.6, -0.1])
        positions = SlicePositions(np.zeros(4), np.arange(4.0))
        student = student_with(size=40, choices=MaskChoices(0.5, smallest=40 * 128**2 // 40**2))
        decisions = decide(student, logits, scores, positions)
        np.testing.assert_array_equal(decisions.drawn, logits > 0)
        np.testing.assert_array_equal(decisions.masks.any(axis=(1, 2)), [False, True, True, False])


class TestThresholds:
    def test_the_threshold_is_the_peak_of_the_lesion_minus_the_span_below_0_only(self):
        images = slices([(2, 8, 2.0), (3, 5, 3.0)], [(2, 8, -1.0)], [(2, 8, 7.0)])
        thresholds = lower_thresholds(images[:2], 5.0)
        assert set(thresholds[:, 2:8, 2:8].flatten().tolist()) == {-2.0}  # also where the slice's logits are below 0
        assert not thresholds[:, 9:].any()
        assert not lower_thresholds(images, 5.0).any()  # a lesion with a peak of 7 is connected

    @pytest.mark.parametrize(("peak", "span", "expected"), [(-0.1, 5.0, 0.0), (0.1, 5.0, LOWEST), (1.0, None, 0.0)])
    def test_none_is_lowered_that_stays_below_0_or_below_the_lowest_or_without_a_span(self, peak, span, expected):
        assert lower_thresholds(slices([(2, 8, peak)]), span).min() == expected

    def test_the_threshold_admits_the_smallest_lesion(self):
        """Lower than 0 where fewer pixels reach that than a component must have."""
        logits = slices([(20, 30, 1.0)], [(20, 30, -2.0), (22, 25, 1.0)], [(20, 24, 1.0)], size=128)
        decisions = decide(student_with(smallest=40), logits, [5, 5, 5])
        np.testing.assert_allclose(decisions.threshold, 1 / (1 + np.exp([0.0, 2.0, 9.0])), rtol=1e-6)
        assert decisions.masks[:2].sum((1, 2)).tolist() == [100, 100]

    def test_a_slice_with_lesions_of_several_thresholds_has_the_lowest_and_the_highest(self):
        strong, faint = (2, 8, 7.0), (20, 26, 1.5)
        student = student_with(size=40, smallest=0, faint_span=3.0)
        decisions = decide(student, slices([strong], [strong, faint], [faint]), [5, 5, 5])
        np.testing.assert_allclose(decisions.threshold, 1 / (1 + np.exp([0, 1.5, 1.5])), rtol=1e-6)
        np.testing.assert_allclose(decisions.highest_threshold, 1 / (1 + np.exp([0, 0, 1.5])), rtol=1e-6)

    def test_a_slice_smaller_than_the_smallest_lesion_has_a_threshold(self):
        student = student_with(size=4, smallest=40 * 128 * 128)
        assert decide(student, np.ones((2, 4, 4)), [5, 5]).threshold.tolist() == [0.5, 0.5]

    def test_smoothing_is_that_of_the_diffusion_model(self):
        values, heights = torch.randn(9, 5, 5), 1.5 * np.arange(9)
        expected = smooth_across_slices(values.numpy(), SlicePositions(np.zeros(9), heights), 2.0)
        np.testing.assert_allclose(smooth(values, torch.from_numpy(heights), 2.0), expected, atol=1e-6)


class TestChoices:
    """A strong lesion, a faint one (drawn down to a lower logit), one too small for any threshold, and two slices more,
    the first without a lesion; logits fall off linearly from the middle of a square."""

    def decide(self, **choices):
        y, x = np.mgrid[:128, :128] - 64
        away = np.maximum(np.abs(y), np.abs(x))
        peaks = (np.maximum(peak - away * 0.3, -9) for peak in (9.0, 2.0, 6.0))
        strong, faint, other = peaks
        logits = [strong, faint, np.where(away < 2, 9, -9), np.full((128, 128), -9), other]
        student = student_with(faint_span=5.0, smallest=40, choices=MaskChoices(**choices))
        return decide(student, logits, [5, 5, 5, 5, -5])

    def test_a_chosen_threshold_holds_for_every_pixel(self):
        """Also in faint and in small lesions, where the calibrated one is lower; healthy slices stay empty."""
        calibrated, chosen = self.decide(), self.decide(threshold_probability=0.8, smallest=0)
        assert calibrated.maps[calibrated.masks].min() < 0.1  # of the faint lesion
        for thresholds in (chosen.threshold, chosen.highest_threshold):  # also where no pixel is above it
            np.testing.assert_allclose(thresholds, 0.8, rtol=1e-6)
        np.testing.assert_array_equal(chosen.masks, (chosen.maps >= 0.8) & chosen.detected[:, None, None])
        assert chosen.maps[4].max() > 0.9
        assert not chosen.masks[4].any()
        for name in ("maps", "score", "detected"):
            np.testing.assert_array_equal(getattr(chosen, name), getattr(calibrated, name))

    def test_the_smallest_component_changes_which_are_dropped_and_no_threshold(self):
        calibrated, every, few = (self.decide(smallest=limit) for limit in (None, 0, 200))
        for changed in (every, few):
            np.testing.assert_array_equal(changed.threshold, calibrated.threshold)
        assert (few.masks <= calibrated.masks).all()
        assert (calibrated.masks <= every.masks).all()
        areas = [self.decide(threshold_probability=0.5, smallest=limit).masks[2].sum() for limit in (0, 8, 9, 40)]
        assert areas == [9, 9, 0, 0]

    @pytest.mark.parametrize("probability", [0, 1, -0.1, 1.5, float("nan")])
    def test_a_threshold_is_a_probability(self, probability):
        with pytest.raises(ConfigError, match="above 0 and below 1"):
            MaskChoices(threshold_probability=probability)


class TestOutlines:
    """Masks on a grid that is finer than the student's pixels."""

    @pytest.mark.parametrize(("centre", "slope"), [((0.0, 0.0), 0.3), ((1.3, -0.7), 1.0), ((0.5, 3.1), 0.3)])
    def test_a_disc_is_found_to_a_fraction_of_a_pixel(self, centre, slope):
        def native(levels):
            return ndimage.zoom(levels[0].double().numpy(), 4, order=1, mode="nearest", grid_mode=True) >= 0.5

        def distances(count, mm):
            along = (np.arange(count) - (count - 1) / 2) * mm
            return np.hypot(along[:, None] - centre[0], along[None] - centre[1])

        margins, truth = torch.from_numpy(slope * (13.0 - distances(32, 4.0))[None]), distances(128, 1.0) <= 13.0
        mask, by_pixels = native(outline_levels(margins, margins >= 0)), native(margins >= 0)
        assert toys.dice(mask, truth) > max(0.98, toys.dice(by_pixels, truth) + 0.025)
        assert mask.sum() == pytest.approx(truth.sum(), rel=0.03)  # linear interpolation makes discs smaller

    def test_masks_of_pixels_are_the_same(self):
        margins = 3 * torch.randn(5, 32, 32, generator=torch.Generator().manual_seed(1))
        masks = (margins >= 0) & ~random_masks(1, margins.shape)  # some are dropped
        masks[2] = False  # nothing is detected there
        levels = outline_levels(margins, masks)
        assert torch.equal(levels >= 0.5, masks)
        assert not levels[2].any()
        assert not levels[(margins >= 0) & ~masks].any()
        assert (float(levels.min()), float(levels.max())) == (0, 1)


class TestEstimatedDice:
    def test_of_masks_it_is_dice_and_of_probabilities_the_formula(self):
        first, second = random_masks(0), random_masks(1)
        np.testing.assert_allclose(soft_dice(first.float(), second), dice(first.numpy(), second.numpy()))
        assert soft_dice(torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)).isnan().all()
        assert float(soft_dice(torch.tensor([[[0.5, 0.25]]]), torch.tensor([[[1, 0]]]))) == 2 * 0.5 / (0.75 + 1)

    def test_it_is_1_only_for_equal_and_certain_predictions(self):
        def estimate(logits, mirrored):
            passes, slice_passes = np.stack([logits, mirrored], axis=1), np.tile([[5.0], [5], [-5], [5], [5], [5]], 2)
            decisions = student_with(size=20, smallest=0).decide_from(
                passes.astype(np.float32), slice_passes.astype(np.float32), SlicePositions.unrelated(6)
            )
            np.testing.assert_array_equal(np.isnan(decisions.estimated_dice), ~decisions.masks.any(axis=(1, 2)))
            return decisions.estimated_dice[[0, 1, 3, 4, 5]]

        logits = np.where(random_masks(4).numpy(), 50.0, -50.0)
        assert estimate(logits, logits) == pytest.approx(1)
        assert (estimate(logits, np.roll(logits, 1, axis=1)) < 1).all()
        assert (estimate(logits / 20, logits / 20) < 0.95).all()

    def test_of_a_scan_it_is_weighted_by_area(self):
        """Which makes it the DICE of the volume where both masks of every slice have the same area."""

        def average(masks, estimates):
            return average_estimate(SimpleNamespace(masks=masks, estimated_dice=np.array(estimates)))

        masks = random_masks(6).numpy()
        moved = np.roll(masks, 2, axis=2)
        assert average(masks, dice(masks, moved)) == pytest.approx(toys.dice(masks, moved))
        masks[1] = False
        assert average(masks, [0.5, np.nan, 0.5, 0.5, 0.5, 0.5]) == pytest.approx(0.5)
        assert np.isnan(average(masks, [np.nan] * 6))
