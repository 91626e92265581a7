"""The paper's comparison: every method through the same slices, the same post-processing and the same numbers.

Methods that read evidence are calibrated on the validation split's image-level labels. The others are tuned on its
masks, as their protocol has it. Then both are run on the test split, once a seed. What is done is kept, by method.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.calibrating import Options as CalibrationOptions
from anofpdm.calibrating import calibrate_model
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError, EvaluationError
from anofpdm.evaluation.methods import Chosen, FromEvidence, Models, Reconstruction, Setting
from anofpdm.evaluation.metrics import foreground
from anofpdm.evaluation.oracle import Tuned, tuned_with_masks
from anofpdm.evaluation.predictions import Slices, Store, decide_all, draw_all, map_all, shared_store
from anofpdm.evaluation.scores import Known, Scores, all_empty, load_scores, save_scores, scored
from anofpdm.evaluation.truth import Truth
from anofpdm.files import write_atomically
from anofpdm.method.calibration import Calibration, from_json, to_json
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.world import World

SETUPS = ("unhealthy", "mixed")
EMPTY = "all-empty"


@dataclass(frozen=True)
class Options:
    calibration: CalibrationOptions = field(default_factory=CalibrationOptions)
    split: str = "test"
    sample: int | None = None  # so many slices of it, drawn without replacement
    sample_seed: int = 0
    tune: int = 1000  # slices that comparison methods are tuned on, at most
    whole_grid: bool = True  # otherwise each comparison method takes its first setting
    seeds: tuple[int, ...] = (0, 1, 2)
    batch: int = 50
    examples: int = 6


@dataclass(frozen=True)
class Cost:
    """Of one method on one slice."""

    evaluations: float  # of any network
    seconds: float


Listener = Callable[[str, int, int], None]  # what is done, done, in all


@dataclass(frozen=True)
class Evaluation:
    """One run of the protocol."""

    model: TrainedModel
    models: Models
    cohort: Cohort
    chosen: Chosen
    out: Path
    options: Options
    world: World
    on_progress: Listener

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._claim()
        if self.world.leads:
            self._score_nothing()
        for name in self.chosen.names:
            method = self.chosen.methods[name]
            if isinstance(method, Reconstruction):
                self._run_comparison(name, method)
        for encoding, signal in sorted({(m.encoding, m.signal) for m in self._readings().values()}):
            some = {n: m for n, m in self._readings().items() if (m.encoding, m.signal) == (encoding, signal)}
            self._run_readings(some, encoding, signal)

    def _readings(self) -> dict[str, FromEvidence]:
        named = ((name, self.chosen.methods[name]) for name in self.chosen.names)
        return {name: method for name, method in named if isinstance(method, FromEvidence)}

    def _run_readings(self, methods: dict[str, FromEvidence], encoding: str, signal: str) -> None:
        test = self.test_rows()
        for seed in self.options.seeds:
            if all(self._done(name, setup, seed) for name in methods for setup in SETUPS):
                continue
            calibration = self._calibration(encoding, signal)
            stores = {name: self._store(f"{name}-{seed}", len(test)) for name in methods}
            watch = self._watch()
            decide_all(
                methods,
                stores,
                calibration,
                self._counted(watch),
                self._slices(test, seed),
                self.world,
                self._showing(f"{encoding} {signal}, seed {seed}"),
            )
            self.world.gathered(None)
            for name, store in stores.items():
                self._finish(name, dict.fromkeys(SETUPS, store), seed, gated=True, cost=watch.cost(len(test)))

    def _run_comparison(self, name: str, method: Reconstruction) -> None:
        test = self.test_rows()
        for seed in self.options.seeds:
            if all(self._done(name, setup, seed) for setup in method.setups):
                continue
            tuned = self._tuned(name, method)
            stores: dict[str, Store] = {}
            watch = self._watch()
            for setup in method.setups:
                store = self._store(f"{name}-{setup}-{seed}", len(test))
                same = next((s for s in stores if tuned[s].setting == tuned[setup].setting), None)
                if same is None:
                    showing = self._showing(f"{name}, {setup}, seed {seed}")
                    slices = self._slices(test, seed)
                    map_all(method, tuned[setup].setting, store, self._counted(watch), slices, self.world, showing)
                elif self.world.leads:
                    store["maps"][:] = stores[same]["maps"]
                self.world.gathered(None)
                draw_all(store, tuned[setup].threshold, self.world)
                stores[setup] = store
            passes = len({json.dumps(dict(tuned[setup].setting)) for setup in method.setups})
            self._finish(name, stores, seed, gated=False, cost=watch.cost(passes * len(test)))

    def _finish(self, name: str, stores: dict[str, Store], seed: int, *, gated: bool, cost: Cost) -> None:
        """Numbers from what is stored, and the store's space given back."""
        if self.world.leads:
            known, examples = self.known(), self.example_positions()
            for setup, store in stores.items():
                positions = np.flatnonzero(known.unhealthy) if setup == "unhealthy" else np.arange(store.count)
                masks = np.array(store["drawn"][positions])
                if gated and setup == "mixed":
                    masks &= store["detected"][positions][:, None, None]
                found = scored(
                    store["maps"][positions],
                    masks,
                    np.array(store["detected"][positions]),
                    np.array(store["score"][positions]),
                    known.take(positions),
                )
                found.numbers.update({"evaluations": cost.evaluations, "seconds": cost.seconds})
                shown = {"maps": np.array(store["maps"][examples]), "masks": np.array(store["drawn"][examples])}
                save_scores(found, self.path(name, setup, seed), shown if seed == self.options.seeds[0] else {})
        self.world.gathered(None)
        for store in {id(store): store for store in stores.values()}.values():
            if self.world.leads:
                store.remove()

    def _score_nothing(self) -> None:
        known = self.known()
        for setup in SETUPS:
            some = known.take(np.flatnonzero(known.unhealthy)) if setup == "unhealthy" else known
            for seed in self.options.seeds:
                if not self._done(EMPTY, setup, seed):
                    save_scores(all_empty(some), self.path(EMPTY, setup, seed), {})

    # ---- calibration by labels, tuning by masks ----------------------------------------------------------------------

    def _calibration(self, encoding: str, signal: str) -> Calibration:
        path = self.out / f"calibration-{encoding}-{signal}.json"
        if path.is_file():
            return from_json(path.read_text(), str(path))
        options = replace(self.options.calibration, encoding=encoding, signal=signal)
        found = calibrate_model(self.model, self.cohort, options, self._showing(f"calibrating {encoding} {signal}"))
        if self.world.leads:
            write_atomically(path, to_json(found.calibration).encode())
        self.world.gathered(None)
        return found.calibration

    def _tuned(self, name: str, method: Reconstruction) -> dict[str, Tuned]:
        path = self.out / f"tuned-{name}.json"
        if path.is_file():
            return {setup: Tuned(**said) for setup, said in json.loads(path.read_text()).items()}
        rows = self._some_rows("val", self.options.tune)
        grid = method.grid if self.options.whole_grid else method.grid[:1]
        maps = [(setting, self._tuning_maps(name, method, setting, rows)) for setting in grid]
        found = tuned_with_masks(maps, Truth(self.cohort).masks(rows))
        if self.world.leads:
            said = {setup: asdict(one) for setup, one in found.items()}
            write_atomically(path, json.dumps(said, indent=2).encode())
        self.world.gathered(None)
        return found

    def _tuning_maps(self, name: str, method: Reconstruction, setting: Setting, rows: np.ndarray) -> np.ndarray:
        store = self._store(f"tuning-{name}", len(rows))
        words = ", ".join(f"{key} {value:g}" for key, value in setting.items())
        showing = self._showing(f"tuning {name}: {words}")
        map_all(method, setting, store, self.models, self._slices(rows, 0), self.world, showing)
        self.world.gathered(None)
        maps = np.array(store["maps"])
        self.world.gathered(None)
        if self.world.leads:
            store.remove()
        return maps

    # ---- slices ------------------------------------------------------------------------------------------------------

    def test_rows(self) -> np.ndarray:
        return self._some_rows(self.options.split, self.options.sample)

    def known(self) -> Known:
        rows = self.test_rows()
        return Known(
            Truth(self.cohort).masks(rows),
            foreground(self.cohort.pixels(rows)),
            self.cohort.patients[rows],
            self.cohort.pixel_mm[rows],
        )

    def example_positions(self) -> np.ndarray:
        """Positions of test slices for the picture: unhealthy, from small lesions to large."""
        areas = Truth(self.cohort).masks(self.test_rows()).sum(axis=(1, 2))
        by_area = np.argsort(areas, kind="stable")[int((areas == 0).sum()) :]
        count = min(self.options.examples, len(by_area))
        return by_area[np.linspace(0, len(by_area) - 1, count + 2).round().astype(int)[1:-1]]

    def _some_rows(self, split: str, most: int | None) -> np.ndarray:
        """Every slice once whose scan has a mask; or so many of them, drawn without replacement."""
        rows = self.cohort.rows(split)
        rows = rows[Truth(self.cohort).known[rows]]
        if not len(rows):
            raise EvaluationError(
                f"{self.cohort.path}: no slice of its {split!r} split has a lesion mask to compare with"
            )
        if most is None or most >= len(rows):
            return rows
        return np.sort(np.random.default_rng(self.options.sample_seed).choice(rows, most, replace=False))

    def _slices(self, rows: np.ndarray, seed: int) -> Slices:
        channels = self.model.channels(self.options.calibration.score)
        return Slices(self.cohort, rows, channels, self.model.device, self.options.batch, seed)

    # ---- the folder --------------------------------------------------------------------------------------------------

    def path(self, name: str, setup: str, seed: int) -> Path:
        """Without its ending: numbers in .json, slices in .npz."""
        return self.out / "methods" / name / f"{setup}-seed{seed}"

    def _done(self, name: str, setup: str, seed: int) -> bool:
        if setup not in getattr(self.chosen.methods.get(name), "setups", SETUPS):
            return True
        return load_scores(self.path(name, setup, seed)) is not None

    def _store(self, name: str, count: int) -> Store:
        return shared_store(self.out / "work" / name, count, self.model.size, self.world)

    def settings(self) -> dict[str, Any]:
        """What results in one folder must share."""
        cohort = {name: self.cohort.manifest.get(name) for name in ("preparation_sha256", "slices_sha256")}
        # Which methods and seeds are run may grow from call to call, and batches change nothing.
        options = {k: v for k, v in asdict(self.options).items() if k not in ("seeds", "batch")}
        options["calibration"].pop("batch")
        said = {"anofpdm": __version__, "model_sha256": self.model.sha256, "cohort": cohort, "options": options}
        return json.loads(json.dumps(said))

    def _claim(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        path, settings = self.out / "settings.json", self.settings()
        if path.is_file() and json.loads(path.read_text()) != settings:
            raise ConfigError(
                f"{self.out}: holds an evaluation of another model, cohort or settings; choose another --out"
            )
        self.world.gathered(None)
        if self.world.leads:
            write_atomically(path, json.dumps(settings, indent=2).encode())

    # ---- cost and progress -------------------------------------------------------------------------------------------

    def _showing(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.on_progress(what, done, total)

    def _watch(self) -> "_Watch":
        return _Watch(self.world)

    def _counted(self, watch: "_Watch") -> Models:
        wrapped = {name: watch.counting(ask) for name, ask in vars(self.models).items() if ask is not None}
        return replace(self.models, **wrapped)


class _Watch:
    """Counts network evaluations and seconds."""

    def __init__(self, world: World):
        self.world, self.count, self.start = world, 0, time.perf_counter()

    def counting(self, ask: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.count += len(x)
            return ask(x, *rest)

        return counted

    def cost(self, slices: int) -> Cost:
        count = sum(self.world.gathered(self.count))
        return Cost(count / slices, self.world.count * (time.perf_counter() - self.start) / slices)


def results_of(evaluation: Evaluation) -> dict[str, dict[str, list[Scores]]]:
    """By method and setup, one entry a seed: all that is in the folder, in the table's order."""
    found: dict[str, dict[str, list[Scores]]] = {}
    for name in (*evaluation.chosen.methods, EMPTY):
        for setup in SETUPS:
            several = [load_scores(evaluation.path(name, setup, seed)) for seed in evaluation.options.seeds]
            if all(one is not None for one in several):
                found.setdefault(name, {})[setup] = [one[0] for one in several if one is not None]
    return found
