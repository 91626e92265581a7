"""What is evaluated, on what, and where results are stored."""

import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm import __version__
from anofpdm.calibration.fit_calibration import CalibrationConfig
from anofpdm.choices import Signal
from anofpdm.cohorts.store import Cohort, foreground
from anofpdm.errors import ConfigError, EvaluationError
from anofpdm.network.predictor import TrainedModel
from anofpdm.scoring.truth import Truth
from anofpdm.study.comparison.method_results import Examples, load_scores
from anofpdm.study.comparison.methods import MethodSelection
from anofpdm.study.comparison.names import EMPTY, SETUPS, Setup
from anofpdm.study.comparison.rival_models import Models
from anofpdm.study.comparison.scores import GroundTruth, Scores
from anofpdm.util.distributed import World
from anofpdm.util.progress import Progress, silent

PROTOCOL = 4  # raised whenever the same settings no longer give the same numbers
CHUNK = 500  # slices read at once
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


def sample_rows(cohort: Cohort, split: str, most: int | None, seed: int) -> np.ndarray:
    """Every slice of scans with a lesion mask, once; or a random sample of them, without replacement."""
    rows = cohort.rows(split)
    rows = rows[Truth(cohort).available[rows]]
    if not len(rows):
        raise EvaluationError(f"{cohort.path}: no slice of the {split!r} split has a lesion mask")
    if most is None or most >= len(rows):
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


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

    @functools.cached_property
    def evaluation_set(self) -> GroundTruth:
        cohort, config = self.cohort, self.config
        rows = sample_rows(cohort, config.split, config.sample, config.sample_seed)
        chunks = np.array_split(rows, -(-len(rows) // CHUNK))
        inside = np.concatenate([foreground(cohort.pixels(chunk)) for chunk in chunks])
        masks = Truth(cohort).masks(rows)
        return GroundTruth(rows, masks, inside, cohort.patients[rows], cohort.pixel_mm[rows])

    @functools.cached_property
    def example_positions(self) -> np.ndarray:
        """Positions of unhealthy slices for the figure, from the smallest lesion to the largest."""
        areas = self.evaluation_set.masks.sum(axis=(1, 2))
        by_area = np.argsort(areas, kind="stable")[int((areas == 0).sum()) :]
        count = min(self.config.examples, len(by_area))
        return by_area[np.linspace(0, len(by_area) - 1, count).round().astype(int)]

    @property
    def channels(self) -> tuple[int, ...]:
        """The scored ones."""
        return self.model.channels(self.config.calibration.score)

    def settings(self) -> dict[str, Any]:
        """Results in one folder must share these. Methods and seeds may be added; batches change no number."""
        options = {name: value for name, value in asdict(self.config).items() if name not in ("seeds", "batch")}
        options["calibration"].pop("batch")
        cohort_hashes = ("preparation_sha256", "slices_sha256", "tables_sha256")
        settings = {
            "anofpdm": __version__,
            "protocol": PROTOCOL,
            "model_sha256": self.model.sha256,
            "precision": self.model.predict.precision,
            "cohort": {name: getattr(self.cohort.manifest, name) for name in cohort_hashes},
            "options": options,
        }
        return json.loads(json.dumps(settings))

    # ---- stored results ----------------------------------------------------------------------------------------------

    def provenance(self, method: str) -> dict[str, str]:
        """Hashes of the models that only this method needs: models of other methods may change."""
        needs = self.methods.registry[method].needs if method in self.methods.registry else ()
        return {name: self.models.hashes.get(name, "") for name in needs}

    def setups(self, method: str) -> tuple[Setup, ...]:
        """In which the method is scored here: without any lesion there is no unhealthy setup."""
        supported = self.methods.registry[method].setups if method in self.methods.registry else SETUPS
        available = SETUPS if self.evaluation_set.unhealthy.any() else (Setup.MIXED,)
        return tuple(setup for setup in available if setup in supported)

    def scores_path(self, method: str, setup: str, seed: int) -> Path:
        """Without suffix: numbers are in .json, slices in .npz."""
        return self.out / "methods" / method / f"{setup}-seed{seed}"

    def load(self, method: str, setup: Setup, seed: int) -> tuple[Scores, Examples] | None:
        return load_scores(self.scores_path(method, setup, seed), self.provenance(method))

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
                loaded = [result[0] for result in stored if result is not None]
                if len(loaded) == len(stored):
                    results.setdefault(name, {})[setup] = loaded
        return results
