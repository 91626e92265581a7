"""DICE and IoU of slices against scikit-learn, and of patients by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays
from sklearn.metrics import f1_score, jaccard_score

from anofpdm.cohorts.store import foreground
from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.pixels import confusion, dice

MASKS = arrays(bool, (3, 4, 5))


def masks(*slices: str) -> np.ndarray:
    """Rows of a slice parted by '/', pixels '#' or '.'."""
    return np.array([[[pixel == "#" for pixel in row] for row in slice_.split("/")] for slice_ in slices])


@given(MASKS, MASKS)
def test_dice_and_iou_equal_scikit_learn(predicted, truth):
    labels = [mask.reshape(len(mask), -1).T for mask in (truth, predicted)]  # a column per slice
    for ours, theirs in [(dice(predicted, truth), f1_score), (confusion(predicted, truth).iou, jaccard_score)]:
        np.testing.assert_allclose(ours, theirs(*labels, average=None, zero_division=1), atol=1e-9)


def test_volume_dice_stacks_the_slices_of_a_patient_in_any_order():
    predicted = masks("##/..", "../..", "##/..", "#./..")
    truth = masks("#./..", "../..", "##/##", "../..")
    volumes = confusion(predicted, truth).volume_dice(np.array(["b", "healthy", "a", "b"]))
    np.testing.assert_allclose(volumes, [2 * 2 / 6, 2 * 1 / 4, np.nan])  # a, b, healthy


def test_incompatible_masks_are_refused():
    mask = masks("#./..")
    with pytest.raises(EvaluationError, match="must match"):
        confusion(mask, mask[:, :1])
    with pytest.raises(EvaluationError, match="boolean"):
        confusion(mask.astype(np.uint8), mask)


def test_foreground_thresholds_the_mean_over_channels():
    pixels = np.full((1, 2, 1, 4), -1, dtype=np.float32)
    pixels[0, :, 0, 1] = -0.95  # at the cut
    pixels[0, 1, 0, 2] = -0.88  # mean -0.94
    pixels[0, 1, 0, 3] = -0.92  # mean -0.96
    np.testing.assert_array_equal(foreground(pixels), [[[False, False, True, False]]])
