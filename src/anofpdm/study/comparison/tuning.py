"""Tuning with lesion masks: only for the comparison methods, and marked in every table.

Where the best value lies at an end of its grid, values beyond it are tried as well, step by step, so that no method
scores low because its best setting was never tried.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.method.mask import mask
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.scoring.truth import Truth
from anofpdm.study.comparison.job import EvaluationJob, sample_rows
from anofpdm.study.comparison.methods import ReconstructionMethod, Setting, describe_setting
from anofpdm.study.comparison.names import SETUPS, Setup
from anofpdm.study.comparison.predictions import Workload, new_store, reconstruct_maps
from anofpdm.util.distributed import World
from anofpdm.util.files import write_atomically
from anofpdm.util.progress import Progress, silent

THRESHOLDS = tuple(round(0.01 * step, 2) for step in range(1, 70))  # 0.01 .. 0.69
BELOW = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, *(round(0.001 * step, 3) for step in range(1, 10)))
ABOVE = (0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 30.0, 50.0, 100.0)
HIGHEST_LEVEL = 999
STEPS_BEYOND = 8


@dataclass(frozen=True)
class Tuned:
    setting: Setting
    threshold: float
    dice: float  # on the slices used for tuning


def tune(job: EvaluationJob, name: str, method: ReconstructionMethod) -> dict[Setup, Tuned]:
    """The best setting and threshold of each setup, from the folder if they were tuned with the same models."""
    path, provenance, world = job.out / f"tuned-{name}.json", job.provenance(name), job.world
    stored = json.loads(path.read_text()) if path.is_file() else {}
    if not world.all_gather(stored.get("made_with") == provenance)[0]:
        config = job.config
        rows = sample_rows(job.cohort, "val", config.tune, config.sample_seed)
        grid = method.grid if config.whole_grid else method.grid[:1]
        ranked = search_settings(
            lambda setting: _maps(job, name, method, setting, rows),
            grid,
            Truth(job.cohort).masks(rows),
            setups=method.setups,
            beyond=config.whole_grid,
            world=world,
            progress=lambda _, done, total, note="": job.progress(f"Tuning {name}: thresholds", done, total, note),
        )
        if world.is_main:
            tried = {setup: [asdict(tuned_setting) for tuned_setting in several] for setup, several in ranked.items()}
            write_atomically(path, json.dumps({"made_with": provenance, "best_first": tried}, indent=2).encode())
        world.all_gather(None)
    best_first = json.loads(path.read_text())["best_first"]
    return {Setup(setup): Tuned(**best) for setup, (best, *_) in best_first.items()}


def _maps(
    job: EvaluationJob, name: str, method: ReconstructionMethod, setting: Setting, rows: np.ndarray
) -> np.ndarray:
    store = new_store(job, f"tuning-{name}", len(rows))
    task = f"Tuning {name}: {describe_setting(setting)}"
    reconstruct_maps(method, setting, store, job.models, Workload(job, rows, 0, task), np.arange(len(rows)))
    job.world.all_gather(None)
    maps = np.array(store["maps"])
    job.world.all_gather(None)
    if job.world.is_main:
        store.remove()
    return maps


# ---- search ----------------------------------------------------------------------------------------------------------


def search_settings(
    maps_of: Callable[[Setting], np.ndarray],  # [n, H, W], median-filtered
    grid: Sequence[Setting],
    truth: np.ndarray,  # bool [n, H, W]
    *,
    setups: Sequence[Setup] = SETUPS,
    beyond: bool = True,  # also try settings beyond the grid, step by step while DICE improves
    world: World | None = None,
    progress: Progress = silent,
) -> dict[Setup, list[Tuned]]:
    """By setup, every setting with its best threshold by mean DICE, best first."""
    unhealthy = np.asarray(truth.any(axis=(1, 2)))
    if not unhealthy.any():
        raise EvaluationError(f"none of the {len(truth)} slices for tuning has a lesion; raise --tune")
    members = {setup: unhealthy | (setup == Setup.MIXED) for setup in setups}
    tuned: dict[Setup, list[Tuned]] = {setup: [] for setup in members}

    def attempt(setting: Setting) -> None:
        for setup, best in _best_thresholds(setting, maps_of(setting), truth, members, progress).items():
            tuned[setup].append(best)

    tried = list(grid)
    for setting in tried:
        attempt(setting)
    for _ in range(STEPS_BEYOND if beyond else 0):
        best = [max(several, key=lambda attempted: attempted.dice).setting for several in tuned.values()]
        untried = (world or World()).all_gather(settings_beyond(best, tried))[0]
        for setting in untried:
            with contextlib.suppress(EvaluationError):  # an extreme setting: non-finite maps
                attempt(setting)
        tried += untried
    return {setup: sorted(several, key=lambda attempted: -attempted.dice) for setup, several in tuned.items()}


def settings_beyond(best: Sequence[Setting], tried: Sequence[Setting]) -> list[Setting]:
    """Untried neighbours of the best settings, with one value changed.

    Beyond the largest and the smallest value tried, the next value continues by the same factor.
    """
    neighbours: list[Setting] = []
    for setting in best:
        connected = _connected(setting, tried)
        for name, value in setting.items():
            values = sorted({other[name] for other in connected})
            for neighbour in _neighbours(name, value, values):
                if {**setting, name: neighbour} not in (*tried, *neighbours):
                    neighbours.append({**setting, name: neighbour})
    return neighbours


def _connected(setting: Setting, settings: Sequence[Setting]) -> list[Setting]:
    """Settings reached from this one by changing one value at a time: a grid may consist of separate grids."""
    connected, left = [setting], [other for other in settings if other != setting]
    for member in connected:
        near = [other for other in left if sum(other[name] != value for name, value in member.items()) == 1]
        connected += near
        left = [other for other in left if other not in near]
    return connected


def _neighbours(name: str, value: float, tried: Sequence[float]) -> list[float]:
    def extrapolate(previous: float) -> float:
        """The next value by the same factor; levels are integers."""
        extrapolated = float(f"{value * value / previous:.3g}")
        return min(round(extrapolated), HIGHEST_LEVEL) if name == "level" else extrapolated

    if len(tried) < 2:
        return []
    place = tried.index(value)
    below = tried[place - 1] if place else extrapolate(tried[1])
    above = tried[place + 1] if place + 1 < len(tried) else extrapolate(tried[-2])
    return [below, above]


def _best_thresholds(
    setting: Setting, maps: np.ndarray, truth: np.ndarray, members: Mapping[Setup, np.ndarray], progress: Progress
) -> dict[Setup, Tuned]:
    per_slice = _dice_at(THRESHOLDS, maps, truth, progress)  # [thresholds, n]
    tuned = {}
    for setup, some in members.items():
        cuts, scores = THRESHOLDS, per_slice[:, some].mean(axis=1)
        at_ends = scores[[0, -1]] == scores.max()  # the last may be best because its masks are empty: try below too
        more = (BELOW if at_ends.any() else ()) + (ABOVE if at_ends[1] else ())
        if more:
            cuts += more
            scores = np.append(scores, _dice_at(more, maps[some], truth[some], progress).mean(axis=1))
        tuned[setup] = Tuned(setting, cuts[scores.argmax()], float(scores.max()))
    return tuned


def _dice_at(cuts: Sequence[float], maps: np.ndarray, truth: np.ndarray, progress: Progress) -> np.ndarray:
    """[cuts, n]."""
    scores = []
    for number, cut in enumerate(cuts, start=1):
        progress("Thresholds", number, len(cuts))
        scores.append(dice(mask(maps, np.full(len(maps), cut)), truth))
    return np.stack(scores)
