"""Tuning with drawn lesions. Only for the comparison methods, whose protocol it is; every table says so."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.evaluation.methods import Setting
from anofpdm.evaluation.metrics import dice
from anofpdm.method.mask import mask

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 70))  # 0.01 .. 0.69


@dataclass(frozen=True)
class Tuned:
    setting: Setting
    threshold: float
    dice: float  # on the slices it was tuned on


def tuned_with_masks(
    tried: Iterable[tuple[Setting, np.ndarray]],
    truth: np.ndarray,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Tuned]:
    """By setup, the setting and threshold with the best mean DICE; of equals the first. Maps [n, H, W], filtered."""
    unhealthy = truth.any(axis=(1, 2))
    if not unhealthy.any():
        raise EvaluationError(f"none of the {len(truth)} slices to tune on has a lesion; raise --tune")
    best: dict[str, Tuned] = {}
    for setting, maps in tried:
        for number, threshold in enumerate(THRESHOLDS, start=1):
            on_progress(number, len(THRESHOLDS))
            per_slice = dice(mask(maps, np.full(len(maps), threshold)), truth)
            for setup, some in (("unhealthy", per_slice[unhealthy]), ("mixed", per_slice)):
                found = float(some.mean())
                if setup not in best or found > best[setup].dice:
                    best[setup] = Tuned(setting, threshold, found)
    return best
