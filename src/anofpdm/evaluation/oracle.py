"""Tuning with drawn lesions. Only for the comparison methods, whose protocol it is; every table says so."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.evaluation.methods import Setting
from anofpdm.evaluation.metrics import dice
from anofpdm.method.mask import mask

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 70))  # 0.01 .. 0.69
FINER = tuple(round(0.001 * step, 3) for step in range(1, 10))  # where the lowest is best: it may still be too high


@dataclass(frozen=True)
class Tuned:
    setting: Setting
    threshold: float
    dice: float  # on the slices it was tuned on


def tuned_with_masks(
    tried: Iterable[tuple[Setting, np.ndarray]],
    truth: np.ndarray,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, list[Tuned]]:
    """By setup, every setting with its best threshold by mean DICE, best first; of equals the first.

    Maps [n, H, W], filtered.
    """
    unhealthy = np.asarray(truth.any(axis=(1, 2)))
    if not unhealthy.any():
        raise EvaluationError(f"none of the {len(truth)} slices to tune on has a lesion; raise --tune")
    members = {"unhealthy": unhealthy, "mixed": np.ones(len(truth), dtype=bool)}
    found: dict[str, list[Tuned]] = {setup: [] for setup in members}
    for setting, maps in tried:
        by_setup = _dice_at(THRESHOLDS, maps, truth, members, on_progress)
        if any(scores.argmax() == 0 for scores in by_setup.values()):
            below = _dice_at(FINER, maps, truth, members, on_progress)
        for setup, scores in by_setup.items():
            cuts = THRESHOLDS
            if scores.argmax() == 0:
                cuts, scores = FINER + THRESHOLDS, np.concatenate([below[setup], scores])
            found[setup].append(Tuned(setting, cuts[scores.argmax()], float(scores.max())))
    return {setup: sorted(several, key=lambda one: -one.dice) for setup, several in found.items()}


def _dice_at(
    cuts: Sequence[float],
    maps: np.ndarray,
    truth: np.ndarray,
    members: Mapping[str, np.ndarray],  # of each setup
    on_progress: Callable[[int, int], None],
) -> dict[str, np.ndarray]:
    """By setup, mean DICE at every threshold."""
    per_slice = []
    for number, cut in enumerate(cuts, start=1):
        on_progress(number, len(cuts))
        per_slice.append(dice(mask(maps, np.full(len(maps), cut)), truth))
    return {setup: np.stack(per_slice)[:, some].mean(axis=1) for setup, some in members.items()}
