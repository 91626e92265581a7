"""How certain a student's masks are, estimated without lesion masks, on the scale of DICE.

A student predicts each slice and its mirror image. Two numbers per slice follow from that:

 -  the DICE of the regions above the threshold in the two predictions (`mirror_agreement`);
 -  the DICE of the mask that its own probabilities imply (`expected_dice`), from the ratio of expected values.

Their product is the estimate: predictions that disagree and probabilities that are undecided both lower it. How it
correlates with the DICE of manual masks: benchmarks/confidence.py.
"""

from collections.abc import Sequence

import numpy as np


def mirror_agreement(first: np.ndarray, second: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Logits [n, H, W] of two predictions, thresholds [n] -> [n]: DICE of the two regions; NaN where both are empty."""
    cuts = thresholds[:, None, None]
    return _soft_dice(first >= cuts, second >= cuts)


def expected_dice(probabilities: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """[n, H, W] each -> [n]: 2 sum(p m) / (sum(p) + sum(m)); NaN where both are empty."""
    return _soft_dice(probabilities, masks)


def estimate_dice(
    passes: Sequence[np.ndarray],  # two of [n, H, W]: logits of both predictions
    thresholds: np.ndarray,  # [n], of logits
    probabilities: np.ndarray,  # [n, H, W], of both together
    masks: np.ndarray,  # bool [n, H, W]
) -> np.ndarray:
    """[n]: the estimated DICE of each mask with a manual one; NaN where the mask is empty."""
    estimate = mirror_agreement(passes[0], passes[1], thresholds) * expected_dice(probabilities, masks)
    return np.where(masks.any(axis=(1, 2)), estimate, np.nan)


def _soft_dice(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    overlap = np.einsum("nij,nij->n", first, second, dtype=float)
    total = first.sum(axis=(1, 2), dtype=float) + second.sum(axis=(1, 2), dtype=float)
    return np.where(total > 0, 2 * overlap / np.where(total > 0, total, 1), np.nan)
