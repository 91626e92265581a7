"""What is evaluated, on what, and where results are stored."""

import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm import __version__
from anofpdm.calibration.fit import CalibrationConfig
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError
from anofpdm.evaluation.comparison.evaluation_set import EvaluationSet, load_evaluation_set, sample_rows
from anofpdm.evaluation.comparison.methods import MethodSelection
from anofpdm.evaluation.comparison.models import Models
from anofpdm.evaluation.comparison.names import EMPTY, SETUPS, Setup
from anofpdm.evaluation.comparison.predictions import Workload
from anofpdm.evaluation.comparison.results import Examples, ResultsFolder, load_scores
from anofpdm.evaluation.comparison.scores import Scores
from anofpdm.evaluation.comparison.store import PredictionStore, shared_store
from anofpdm.network.predictor import TrainedModel
from anofpdm.options import Signal
from anofpdm.util.distributed import World
from anofpdm.util.progress import Progress, silent

PROTOCOL = 4  # raised whenever the same settings no longer give the same numbers
COHORT_HASHES = ("preparation_sha256", "slices_sha256", "tables_sha256")
Results = dict[str, dict[Setup, list[Scores]]]  # by method and setup, one entry a seed


@dataclass(frozen=True)
class EvaluationConfig:
    calibration: CalibrationConfig = field(default_factory=lambda: CalibrationConfig(signal=Signal.ERROR))
    split: str = "test"
    sample: int | None = None  # slices; None: all
    sample_seed: int = 0
    tune: int = 1000  # slices for tuning comparison methods, at most
    whole_grid: bool = True  # False: each comparison method takes its first setting
    seeds: tuple[int, ...] = (0, 1, 2)
    batch: int = 50
    examples: int = 6  # slices in the figure

    def __post_init__(self) -> None:
        if not self.seeds or self.tune < 1 or self.batch < 1 or (self.sample is not None and self.sample < 1):
            raise ConfigError(f"seeds, tune, batch and sample must not be empty or below 1, got {self}")


@dataclass(frozen=True)
class EvaluationJob:
    model: TrainedModel
    models: Models
    cohort: Cohort
    methods: MethodSelection
    out: Path
    config: EvaluationConfig
    world: World = field(default_factory=World)
    progress: Progress = silent

    @property
    def folder(self) -> ResultsFolder:
        return ResultsFolder(self.out)

    @functools.cached_property
    def evaluation_set(self) -> EvaluationSet:
        config = self.config
        rows = sample_rows(self.cohort, config.split, config.sample, config.sample_seed)
        return load_evaluation_set(self.cohort, rows)

    def workload(self, rows: np.ndarray, seed: int, task: str) -> Workload:
        channels = self.model.channels(self.config.calibration.score)
        report = functools.partial(self.progress, task)
        return Workload(self.cohort, rows, channels, self.model.device, self.config.batch, seed, self.world, report)

    def new_store(self, name: str, count: int) -> PredictionStore:
        return shared_store(self.folder.work(name), count, self.model.size, self.world)

    def settings(self) -> dict[str, Any]:
        """Results in one folder must share these. Methods and seeds may be added; batches change no number."""
        options = {name: value for name, value in asdict(self.config).items() if name not in ("seeds", "batch")}
        options["calibration"].pop("batch")
        settings = {
            "anofpdm": __version__,
            "protocol": PROTOCOL,
            "model_sha256": self.model.sha256,
            "precision": self.model.predict.precision,
            "cohort": {name: self.cohort.manifest.get(name) for name in COHORT_HASHES},
            "options": options,
        }
        return json.loads(json.dumps(settings))

    # ---- stored results ----------------------------------------------------------------------------------------------

    def provenance(self, method: str) -> dict[str, str]:
        """Hashes of the models that only this method needs: models of other methods may change."""
        needs = self.methods.registry[method].needs if method in self.methods.registry else ()
        return {name: self.models.hashes.get(name, "") for name in needs}

    def setups(self, method: str) -> tuple[Setup, ...]:
        """In which the method is scored here."""
        supported = self.methods.registry[method].setups if method in self.methods.registry else SETUPS
        return tuple(setup for setup in self.evaluation_set.setups if setup in supported)

    def load(self, method: str, setup: Setup, seed: int) -> tuple[Scores, Examples] | None:
        return load_scores(self.folder.scores(method, setup, seed), self.provenance(method))

    def is_done(self, method: str, seed: int) -> bool:
        """As the main process finds it, in all processes."""
        done = all(self.load(method, setup, seed) is not None for setup in self.setups(method))
        return self.world.all_gather(done)[0]

    def results(self) -> Results:
        """All results of the folder that have every seed, in the order of the registry."""
        results: Results = {}
        for name in (*self.methods.registry, EMPTY):
            for setup in SETUPS:
                stored = [self.load(name, setup, seed) for seed in self.config.seeds]
                loaded = [one[0] for one in stored if one is not None]
                if len(loaded) == len(stored):
                    results.setdefault(name, {})[setup] = loaded
        return results
