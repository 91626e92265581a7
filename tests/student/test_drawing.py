"""The user's choices of a student's masks: the threshold, and the smallest component."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from anofpdm.student.drawing import DrawingChoices

from anofpdm.errors import ConfigError
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.student.student import DetectBy, Student
from tests.optional_toys import make_student

SIZE = 128
HEALTHY_ROW = 4
# A strong lesion, a faint one (drawn down to a lower logit), one too small for any threshold, and two slices without.
SQUARES = ((9.0, 40), (2.0, 40), (9.0, 4), (None, 0), (6.0, 40))


def student_with(**choices) -> Student:
    """Detects slices by their own logit, and lowers the threshold of faint lesions."""
    detector = CurveDetector(np.zeros(1), np.ones(1), np.ones(1), offset=0.0, strength=1.0)
    toy = make_student()
    calibration = replace(
        toy.calibration,
        detector=detector, detect_by=DetectBy.SLICE, faint_span=5.0, smallest=40, context_mm=0.0, detection_mm=0.0,
    )  # fmt: skip
    return replace(toy, calibration=calibration, drawing=DrawingChoices(**choices))


def decide(student):
    """On logits that fall off linearly from the middle of a square."""
    y, x = np.mgrid[:SIZE, :SIZE] - SIZE // 2
    away = np.maximum(np.abs(y), np.abs(x))
    logits = np.full((len(SQUARES), SIZE, SIZE), -9, np.float32)
    for image, (peak, width) in zip(logits, SQUARES, strict=True):
        if peak is not None:
            image[:] = np.maximum(peak - away * 12 / width, -9) if width > 4 else np.where(away < 2, peak, -9)
    slice_logits = np.array([5, 5, 5, 5, -5], np.float32)
    positions = SlicePositions(np.arange(len(SQUARES)), np.zeros(len(SQUARES)))  # scans of one slice
    return student.decide_from(np.stack([logits, logits]), np.stack([slice_logits] * 2), positions)


def test_a_chosen_threshold_holds_for_every_pixel():
    """Also in faint and in small lesions, where the calibrated one is lower; what is called healthy stays empty."""
    calibrated, chosen = decide(student_with()), decide(student_with(threshold_probability=0.8, smallest=0))
    assert calibrated.maps[calibrated.masks].min() < 0.1  # of the faint lesion
    for thresholds in (chosen.threshold, chosen.highest_threshold):  # also of the slice without any pixel above it
        np.testing.assert_allclose(thresholds, 0.8, rtol=1e-6)
    expected = (chosen.maps >= 0.8) & chosen.detected[:, None, None]
    np.testing.assert_array_equal(chosen.masks, expected)
    assert chosen.maps[HEALTHY_ROW].max() > 0.9
    assert not chosen.masks[HEALTHY_ROW].any()
    for name in ("maps", "score", "detected"):
        np.testing.assert_array_equal(getattr(chosen, name), getattr(calibrated, name))


def test_a_higher_threshold_draws_no_more():
    masks = [decide(student_with(threshold_probability=one)).masks for one in (0.001, 0.3, 0.5, 0.9, 0.999)]
    assert all((larger | smaller == larger).all() for larger, smaller in pairwise(masks))
    assert len({int(one.sum()) for one in masks}) == len(masks)


def test_the_smallest_component_changes_which_are_dropped_and_no_threshold():
    calibrated, every, few = (decide(student_with(smallest=limit)) for limit in (None, 0, 200))
    for changed in (every, few):
        np.testing.assert_array_equal(changed.threshold, calibrated.threshold)
    assert (every.masks >= calibrated.masks).all()
    assert (few.masks <= calibrated.masks).all()
    assert few.masks[0].any()
    chosen = [decide(student_with(threshold_probability=0.5, smallest=limit)).masks[2].sum() for limit in (0, 8, 9, 40)]
    assert chosen == [9, 9, 0, 0]


@pytest.mark.parametrize("probability", [0, 1, -0.1, 1.5, float("nan")])
def test_a_threshold_is_a_probability(probability):
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        DrawingChoices(threshold_probability=probability)
