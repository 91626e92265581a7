"""The paper's comparison: every method through the same slices, the same post-processing and the same numbers.

Methods that read evidence are calibrated on the validation split's image-level labels. The others are tuned on its
masks, as their protocol has it. Then both are run on the test split, once a seed. What is done is kept, by method.
"""

import contextlib
import functools
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.calibration.fit import RATED_BY, check_fits, fit_calibration
from anofpdm.calibration.fit import Options as CalibrationOptions
from anofpdm.cohorts.store import Cohort, check_slices, foreground
from anofpdm.errors import CalibrationError, ConfigError, EvaluationError, MethodError
from anofpdm.evaluation.comparison.methods import Chosen, FromEvidence, FromStudent, Models, Reconstruction, Setting
from anofpdm.evaluation.comparison.oracle import Tuned, tuned_with_masks
from anofpdm.evaluation.comparison.predictions import (
    Slices,
    Store,
    decide_all,
    draw_all,
    map_all,
    shared_store,
    student_all,
)
from anofpdm.evaluation.comparison.scores import Known, Scores, all_empty, load_scores, save_scores, scored
from anofpdm.evaluation.truth import Truth
from anofpdm.method.calibration import Calibration, from_json, to_json
from anofpdm.network.predictor import TrainedModel
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically

SETUPS = ("unhealthy", "mixed")
EMPTY = "all-empty"
CHUNK = 500  # slices looked at at once
PROTOCOL = 4  # another where numbers of the same settings are no longer the same


@dataclass(frozen=True)
class Options:
    calibration: CalibrationOptions = field(default_factory=lambda: CalibrationOptions(signal=RATED_BY))
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
    hashes: Mapping[str, str] = field(default_factory=dict)  # of the comparison methods' models, by name
    failed: dict[str, str] = field(default_factory=dict)  # methods that could not be done, and why

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        check_fits(self.model, self.cohort)
        self.known  # noqa: B018  complains of a wrong split, or of missing masks, before anything is written
        calibrated_on = self.cohort.rows(self.options.calibration.split)
        check_slices(self.cohort, np.union1d(self.measured_rows(), calibrated_on))
        with self._claimed():
            if self.world.is_main:
                self._score_nothing()
            for name in self.chosen.names:
                method = self.chosen.methods[name]
                if isinstance(method, Reconstruction):
                    self._attempt((name,), functools.partial(self._run_comparison, name, method))
                if isinstance(method, FromStudent):
                    self._run_student(name)
            for encoding in sorted({method.encoding for method in self._readings().values()}):
                some = {name: method for name, method in self._readings().items() if method.encoding == encoding}
                self._attempt(tuple(some), functools.partial(self._run_readings, some, encoding))

    def _attempt(self, names: tuple[str, ...], run: Callable[[], None]) -> None:
        """One method that cannot be done does not cost the others; every process hears of it."""
        try:
            run()
        except (EvaluationError, MethodError) as problem:
            self.failed.update(dict.fromkeys(names, str(problem)))

    def _readings(self) -> dict[str, FromEvidence]:
        named = ((name, self.chosen.methods[name]) for name in self.chosen.names)
        return {name: method for name, method in named if isinstance(method, FromEvidence)}

    def _run_readings(self, methods: dict[str, FromEvidence], encoding: str) -> None:
        test = self.measured_rows()
        for seed in self.options.seeds:
            done = {name: self._all(self._done(name, setup, seed) for setup in self.setups) for name in methods}
            left = {name: method for name, method in methods.items() if not done[name]}
            if not left:
                continue
            calibrations = self._calibrations(left)
            stores = {name: self._store(f"{name}-{seed}", len(test)) for name in left}
            watch = self._watch()
            decide_all(
                left,
                stores,
                calibrations,
                self._counted(watch),
                self._slices(test, seed),
                self.world,
                self._showing(f"{encoding}, seed {seed}"),
            )
            costs = dict.fromkeys(self.setups, watch.cost(len(test)))
            for name, store in stores.items():
                self._finish(name, dict.fromkeys(self.setups, store), seed, gated=True, costs=costs)

    def _run_student(self, name: str) -> None:
        test, student = self.measured_rows(), self.models.student
        for seed in self.options.seeds:  # it knows no noise; every seed says the same
            if student is None or self._all(self._done(name, setup, seed) for setup in self.setups):
                continue
            store = self._store(f"{name}-{seed}", len(test))
            watch = self._watch()
            student_all(student, store, self._slices(test, seed), self.world, self._showing(f"{name}, seed {seed}"))
            cost = replace(watch.cost(len(test)), evaluations=2.0)  # the slice, and its mirror image
            self.world.all_gather(None)
            costs = dict.fromkeys(self.setups, cost)
            self._finish(name, dict.fromkeys(self.setups, store), seed, gated=True, costs=costs)

    def _run_comparison(self, name: str, method: Reconstruction) -> None:
        test = self.measured_rows()
        for seed in self.options.seeds:
            if self._all(self._done(name, setup, seed) for setup in method.setups):
                continue
            tuned, stores, costs = self._tuned(name, method), dict[str, Store](), dict[str, Cost]()
            for setup in sorted(set(method.setups) & set(self.setups)):  # mixed, which has all slices, first
                store = self._store(f"{name}-{setup}-{seed}", len(test))
                wanted = np.arange(len(test))[self._positions(setup)]
                same = next((s for s in stores if tuned[s].setting == tuned[setup].setting), None)
                if same is None:
                    showing, slices = self._showing(f"{name}, {setup}, seed {seed}"), self._slices(test, seed)
                    watch, setting = self._watch(), tuned[setup].setting
                    map_all(method, setting, store, self._counted(watch), slices, self.world, showing, wanted)
                    costs[setup] = watch.cost(len(wanted))
                else:
                    costs[setup] = costs[same]
                    if self.world.is_main:
                        store["maps"][:] = stores[same]["maps"]
                self.world.all_gather(None)
                draw_all(store, tuned[setup].threshold, self.world)
                stores[setup] = store
            self._finish(name, stores, seed, gated=False, costs=costs)

    def _finish(self, name: str, stores: dict[str, Store], seed: int, *, gated: bool, costs: dict[str, Cost]) -> None:
        """Numbers from what is stored, and the store's space given back."""
        if self.world.is_main:
            for number, (setup, store) in enumerate(stores.items()):
                self._showing(f"scoring {name}, seed {seed}")(number, len(stores))
                found = self._scores(setup, store, gated=gated)
                found.numbers.update({"evaluations": costs[setup].evaluations, "seconds": costs[setup].seconds})
                save_scores(found, self.path(name, setup, seed), self._made_with(name), self._shown(store, seed))
            self._showing(f"scoring {name}, seed {seed}")(len(stores), len(stores))
        self.world.all_gather(None)
        for store in {id(store): store for store in stores.values()}.values():
            if self.world.is_main:
                store.remove()

    def _scores(self, setup: str, store: Store, *, gated: bool) -> Scores:
        """In the mixed setup the detector empties the slices that it calls healthy; in the other there is none."""
        positions = self._positions(setup)
        maps, masks = store["maps"][positions], np.array(store["drawn"][positions])
        raw = maps >= store["cut"][positions][:, None, None]
        detected = np.array(store["detected"][positions])
        if gated and setup == "mixed":
            masks &= detected[:, None, None]
            raw &= detected[:, None, None]
        found = scored(maps, masks, detected, np.array(store["score"][positions]), self.known.take(positions), raw)
        return _without_detector(found) if setup == "unhealthy" else found

    def _positions(self, setup: str) -> slice | np.ndarray:
        """Of a setup's slices among those measured. All of them as a slice: what it takes is not copied."""
        return np.flatnonzero(self.known.unhealthy) if setup == "unhealthy" else slice(None)

    def _shown(self, store: Store, seed: int) -> dict[str, np.ndarray]:
        if seed != self.options.seeds[0]:
            return {}
        some = self.example_positions()
        return {"maps": np.array(store["maps"][some]), "masks": np.array(store["drawn"][some])}

    def _score_nothing(self) -> None:
        for setup in self.setups:
            missing = [seed for seed in self.options.seeds if not self._done(EMPTY, setup, seed)]
            found = all_empty(self.known.take(self._positions(setup)))
            found = _without_detector(found) if setup == "unhealthy" else found
            for seed in missing:
                save_scores(found, self.path(EMPTY, setup, seed), self._made_with(EMPTY), {})

    # ---- calibration by labels, tuning by masks ----------------------------------------------------------------------

    def _calibrations(self, methods: dict[str, FromEvidence]) -> dict[str, Calibration]:
        """The first process's, for all, of methods of one encoding.

        Strength, cut and largest divergence do not depend on the signal. What does, a threshold from healthy slices, is
        of no use to the paper's gradients.
        """
        for method in sorted(methods.values(), key=lambda one: calibrated_signal(one) == RATED_BY):
            if not self._all([self.calibration_path(method).is_file()]):
                signal = calibrated_signal(method)
                self._calibrate(replace(self.options.calibration, encoding=method.encoding, signal=signal))
        return {name: self._calibration(method) for name, method in methods.items()}

    def _calibration(self, method: FromEvidence) -> Calibration:
        path = self.calibration_path(method)
        return from_json(path.read_text(), str(path)).for_signal(method.signal)

    def _calibrate(self, options: CalibrationOptions) -> None:
        """By the first process, while the others wait: what it cannot do, all of them hear of."""
        problem = ""
        if self.world.is_main:
            try:
                self._write_calibrations(options)
            except (CalibrationError, EvaluationError, MethodError) as found:
                problem = str(found)
        if problems := [one for one in self.world.all_gather(problem) if one]:
            raise EvaluationError(problems[0])

    def _write_calibrations(self, options: CalibrationOptions) -> None:
        """One pass of the network serves every way to choose the strength, and maps of errors besides those asked.

        What is there already stays as it is: results were made with it.
        """
        found = fit_calibration(self.model, self.cohort, options, self._showing(f"calibrating {options.encoding}"))
        ours = options.strength_by
        for signal, by in sorted({(RATED_BY, "cosine"), (RATED_BY, ours), (options.signal, ours)}):
            path, calibration = self.out / calibration_name(options.encoding, by, signal), found.made_for(signal, by)
            if not path.is_file():
                write_atomically(path, to_json(calibration).encode())
            elif not alike(from_json(path.read_text(), str(path)), calibration):
                raise EvaluationError(
                    f"{path} has another strength or noise range than is found now; use another --out"
                )

    def calibration_path(self, method: FromEvidence) -> Path:
        by = "cosine" if method.of_the_paper else self.options.calibration.strength_by
        return self.out / calibration_name(method.encoding, by, calibrated_signal(method))

    def _tuned(self, name: str, method: Reconstruction) -> dict[str, Tuned]:
        path, made_with = self.out / f"tuned-{name}.json", self._made_with(name)
        said = json.loads(path.read_text()) if path.is_file() else {}
        if not self.world.all_gather(said.get("made_with") == made_with)[0]:
            rows, whole = self._some_rows("val", self.options.tune), self.options.whole_grid
            found = tuned_with_masks(
                lambda setting: self._tuning_maps(name, method, setting, rows),
                method.grid if whole else method.grid[:1],
                Truth(self.cohort).masks(rows),
                self._showing(f"tuning {name}: thresholds"),
                setups=method.setups,
                beyond=whole,
                agreed=lambda settings: self.world.all_gather(settings)[0],
            )
            if self.world.is_main:
                tried = {setup: [asdict(one) for one in several] for setup, several in found.items()}
                write_atomically(path, json.dumps({"made_with": made_with, "best_first": tried}, indent=2).encode())
            self.world.all_gather(None)
        return {setup: Tuned(**best) for setup, (best, *_) in json.loads(path.read_text())["best_first"].items()}

    def _tuning_maps(self, name: str, method: Reconstruction, setting: Setting, rows: np.ndarray) -> np.ndarray:
        store = self._store(f"tuning-{name}", len(rows))
        words = ", ".join(f"{key} {value:g}" for key, value in setting.items())
        showing = self._showing(f"tuning {name}: {words}")
        map_all(method, setting, store, self.models, self._slices(rows, 0), self.world, showing)
        self.world.all_gather(None)
        maps = np.array(store["maps"])
        self.world.all_gather(None)
        if self.world.is_main:
            store.remove()
        return maps

    # ---- slices ------------------------------------------------------------------------------------------------------

    def measured_rows(self) -> np.ndarray:
        return self._some_rows(self.options.split, self.options.sample)

    @functools.cached_property
    def known(self) -> Known:
        rows = self.measured_rows()
        shown = [foreground(self.cohort.pixels(some)) for some in np.array_split(rows, -(-len(rows) // CHUNK))]
        masks = Truth(self.cohort).masks(rows)
        return Known(masks, np.concatenate(shown), self.cohort.patients[rows], self.cohort.pixel_mm[rows])

    @property
    def setups(self) -> tuple[str, ...]:
        """Without a single lesion there are no unhealthy slices to measure on."""
        return SETUPS if self.known.unhealthy.any() else ("mixed",)

    def example_positions(self) -> np.ndarray:
        """Positions of test slices for the picture: unhealthy, from the smallest lesion to the largest."""
        areas = self.known.truth.sum(axis=(1, 2))
        by_area = np.argsort(areas, kind="stable")[int((areas == 0).sum()) :]
        count = min(self.options.examples, len(by_area))
        return by_area[np.linspace(0, len(by_area) - 1, count).round().astype(int)]

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
        """As the first process sees it."""
        if setup not in self.setups or setup not in getattr(self.chosen.methods.get(name), "setups", SETUPS):
            return True
        return self.saved(name, setup, seed) is not None

    def saved(self, name: str, setup: str, seed: int) -> tuple[Scores, dict[str, np.ndarray]] | None:
        return load_scores(self.path(name, setup, seed), self._made_with(name))

    def _made_with(self, name: str) -> dict[str, str]:
        """Hashes of the models that only this method needs: others may be added or changed."""
        return {one: self.hashes.get(one, "") for one in getattr(self.chosen.methods.get(name), "needs", ())}

    def _all(self, said: Iterable[bool]) -> bool:
        return self.world.all_gather(all(said))[0]

    def _store(self, name: str, count: int) -> Store:
        return shared_store(self.out / "work" / name, count, self.model.size, self.world)

    def settings(self) -> dict[str, Any]:
        """What results in one folder must share."""
        cohort = {
            name: self.cohort.manifest.get(name) for name in ("preparation_sha256", "slices_sha256", "tables_sha256")
        }
        # Which methods and seeds are run may grow from call to call, and batches change nothing.
        options = {k: v for k, v in asdict(self.options).items() if k not in ("seeds", "batch")}
        options["calibration"].pop("batch")
        said = {
            "anofpdm": __version__,
            "protocol": PROTOCOL,
            "model_sha256": self.model.sha256,
            "precision": self.model.predict.precision,
            "cohort": cohort,
            "options": options,
        }
        return json.loads(json.dumps(said))

    @contextlib.contextmanager
    def _claimed(self) -> Iterator[None]:
        """The folder for this evaluation alone, and for this run of it."""
        self.out.mkdir(parents=True, exist_ok=True)
        path, settings = self.out / "settings.json", self.settings()
        before = json.loads(path.read_text()) if path.is_file() else settings
        if before != settings:
            others = ", ".join(sorted(name for name in settings if before.get(name) != settings[name]))
            raise ConfigError(f"{self.out}: holds an evaluation of another {others}; choose another --out")
        self.world.all_gather(None)
        with folder_lock(self.out) if self.world.is_main else contextlib.nullcontext():
            if self.world.is_main:
                self._clear_unfinished()
                write_atomically(path, json.dumps(settings, indent=2).encode())
            yield

    def _clear_unfinished(self) -> None:
        """What a killed run left behind."""
        shutil.rmtree(self.out / "work", ignore_errors=True)
        for folder in (self.out, *self.out.glob("methods/*")):
            remove_temporary_files(folder)

    # ---- cost and progress -------------------------------------------------------------------------------------------

    def _showing(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.on_progress(what, done, total)

    def _watch(self) -> "_Watch":
        return _Watch(self.world)

    def _counted(self, watch: "_Watch") -> Models:
        wrapped = {name: watch.counting(ask) for name, ask in vars(self.models).items() if callable(ask)}
        return replace(self.models, **wrapped)  # type: ignore[arg-type]


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
        count = sum(self.world.all_gather(self.count))
        return Cost(count / slices, self.world.count * (time.perf_counter() - self.start) / slices)


def calibrated_signal(method: FromEvidence) -> str:
    """Whose maps its threshold from healthy slices is of: the paper's methods have none, and share a calibration."""
    return RATED_BY if method.of_the_paper else method.signal


def alike(one: Calibration, other: Calibration) -> bool:
    return (one.strength, one.settings) == (other.strength, other.settings)


def calibration_name(encoding: str, strength_by: str, signal: str = RATED_BY) -> str:
    by = "" if strength_by == "cosine" else f"-by-{strength_by}"
    of = "" if signal == RATED_BY else f"-of-{signal}"
    return f"calibration-{encoding}{by}{of}.json"


def _without_detector(found: Scores) -> Scores:
    """Among unhealthy slices alone there is nothing to detect, and volumes are not whole."""
    for name in ("accuracy", "image_auc", "volume_dice"):
        found.numbers[name] = float("nan")
        found.intervals.pop(name, None)
    return found


def results_of(evaluation: Evaluation) -> dict[str, dict[str, list[Scores]]]:
    """By method and setup, one entry a seed: all that is in the folder, in the table's order."""
    found: dict[str, dict[str, list[Scores]]] = {}
    for name in (*evaluation.chosen.methods, EMPTY):
        for setup in SETUPS:
            several = [evaluation.saved(name, setup, seed) for seed in evaluation.options.seeds]
            if all(one is not None for one in several):
                found.setdefault(name, {})[setup] = [one[0] for one in several if one is not None]
    return found
