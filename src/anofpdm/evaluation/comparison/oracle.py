"""Tuning with drawn lesions. Only for the comparison methods, whose protocol it is; every table says so.

The paper's grids end somewhere. Where the best value lies at an end, what is beyond it is tried as well, step by step:
a method must not look bad because its best was never tried.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.evaluation.comparison.methods import Setting
from anofpdm.evaluation.metrics.pixels import dice
from anofpdm.method.mask import mask

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 70))  # 0.01 .. 0.69
BELOW = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, *(round(0.001 * step, 3) for step in range(1, 10)))
ABOVE = (0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 100.0)
HIGHEST_LEVEL = 999
STEPS_BEYOND = 8

Listener = Callable[[int, int], None]


@dataclass(frozen=True)
class Tuned:
    setting: Setting
    threshold: float
    dice: float  # on the slices it was tuned on


def tuned_with_masks(
    maps_of: Callable[[Setting], np.ndarray],  # [n, H, W], filtered
    grid: Sequence[Setting],
    truth: np.ndarray,
    on_progress: Listener = lambda _done, _total: None,
    *,
    setups: Sequence[str] = ("unhealthy", "mixed"),
    beyond: bool = True,  # also beyond the grid, step by step while that is better
    agreed: Callable[[list[Setting]], list[Setting]] = lambda settings: settings,  # among several processes
) -> dict[str, list[Tuned]]:
    """By setup, every setting with its best threshold by mean DICE, best first; of equals the first."""
    unhealthy = np.asarray(truth.any(axis=(1, 2)))
    if not unhealthy.any():
        raise EvaluationError(f"none of the {len(truth)} slices to tune on has a lesion; raise --tune")
    members = {setup: unhealthy if setup == "unhealthy" else np.ones(len(truth), dtype=bool) for setup in setups}
    found: dict[str, list[Tuned]] = {setup: [] for setup in members}

    def attempt(setting: Setting) -> None:
        for setup, one in _best_thresholds(setting, maps_of(setting), truth, members, on_progress).items():
            found[setup].append(one)

    for setting in grid:
        attempt(setting)
    tried = list(grid)
    for _ in range(STEPS_BEYOND if beyond else 0):
        best = [max(several, key=lambda one: one.dice).setting for several in found.values()]
        further = agreed(settings_beyond(best, tried))
        for setting in further:
            with contextlib.suppress(EvaluationError):  # too far: its maps are not numbers
                attempt(setting)
        tried += further
    return {setup: sorted(several, key=lambda one: -one.dice) for setup, several in found.items()}


def settings_beyond(best: Sequence[Setting], before: Sequence[Setting]) -> list[Setting]:
    """What lies next to each of the best, one value changed, and was not tried: where a value is the largest or the
    smallest of all that were tried, as far beyond it again as the one before it lies behind."""
    found: list[Setting] = []
    for setting in best:
        family = _family(setting, before)
        for name, value in setting.items():
            tried = sorted({one[name] for one in family})
            for near in _neighbours(name, value, tried):
                if {**setting, name: near} not in (*before, *found):
                    found.append({**setting, name: near})
    return found


def _family(setting: Setting, settings: Sequence[Setting]) -> list[Setting]:
    """Those that single changes lead to, from this one to the next: a grid may be several grids side by side."""
    family, left = [setting], [one for one in settings if one != setting]
    for member in family:
        near = [one for one in left if sum(one[name] != value for name, value in member.items()) == 1]
        family += near
        left = [one for one in left if one not in near]
    return family


def _neighbours(name: str, value: float, tried: Sequence[float]) -> list[float]:
    if len(tried) < 2:
        return []
    place = tried.index(value)
    below = tried[place - 1] if place else _as_far_again(name, tried[1], value)
    above = tried[place + 1] if place + 1 < len(tried) else _as_far_again(name, tried[-2], value)
    return [below, above]


def _as_far_again(name: str, before: float, value: float) -> float:
    """By the same factor; levels are whole."""
    further = float(f"{value * value / before:.3g}")
    return min(round(further), HIGHEST_LEVEL) if name == "level" else further


def _best_thresholds(
    setting: Setting, maps: np.ndarray, truth: np.ndarray, members: Mapping[str, np.ndarray], on_progress: Listener
) -> dict[str, Tuned]:
    """By setup."""
    per_slice = _dice_at(THRESHOLDS, maps, truth, on_progress)  # [thresholds, n]
    found = {}
    for setup, some in members.items():
        cuts, scores = THRESHOLDS, per_slice[:, some].mean(axis=1)
        at_ends = scores[[0, -1]] == scores.max()  # the last may be best because it draws nothing: then look below too
        further = (BELOW if at_ends.any() else ()) + (ABOVE if at_ends[1] else ())
        if further:
            cuts += further
            scores = np.append(scores, _dice_at(further, maps[some], truth[some], on_progress).mean(axis=1))
        found[setup] = Tuned(setting, cuts[scores.argmax()], float(scores.max()))
    return found


def _dice_at(cuts: Sequence[float], maps: np.ndarray, truth: np.ndarray, on_progress: Listener) -> np.ndarray:
    """[cuts, n]."""
    found = []
    for number, cut in enumerate(cuts, start=1):
        on_progress(number, len(cuts))
        found.append(dice(mask(maps, np.full(len(maps), cut)), truth))
    return np.stack(found)
