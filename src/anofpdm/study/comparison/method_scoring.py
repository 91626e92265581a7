"""Scores of stored predictions, computed by worker processes while the network works on the next method."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.study.comparison.job import EvaluationJob
from anofpdm.study.comparison.method_results import WORK, Examples, save_scores
from anofpdm.study.comparison.names import EMPTY, Setup
from anofpdm.study.comparison.predictions import PredictionStore
from anofpdm.study.comparison.scores import Scores, score_stored
from anofpdm.util.files import translate_write_errors
from anofpdm.util.workers import cpu_cores, worker_pool

WORKER_SLICES = 400  # fewer are scored sooner than a worker starts
SLICES_AT_ONCE = 40_000  # in all workers together: each holds copies of its maps and masks


@dataclass(frozen=True)
class Pending:
    method: str
    scores: Future[Scores]
    save: Callable[[Scores], None]


@dataclass
class Scorer:
    """In the main process; the others only wait."""

    job: EvaluationJob
    pool: Executor | None
    failures: dict[str, str] = field(default_factory=dict)  # by method
    pending: list[Pending] = field(default_factory=list)
    submitted: int = 0

    @classmethod
    @contextlib.contextmanager
    def start(cls, job: EvaluationJob) -> Iterator["Scorer"]:
        """Once everything has been submitted, waits for the scores."""
        with worker_pool(_workers(len(job.evaluation_set.rows)) if job.world.is_main else 1) as pool:
            scorer = cls(job, pool)
            if job.world.is_main:
                with translate_write_errors(scorer.truth):
                    job.evaluation_set.save(scorer.truth)
            yield scorer
            scorer.save_finished(wait=True)
        job.world.all_gather(None)
        shutil.rmtree(job.out / WORK, ignore_errors=True)

    @property
    def truth(self) -> Path:
        return self.job.out / WORK / "truth"

    def submit_empty(self) -> None:
        """The row `all-empty`."""
        job = self.job
        for setup in job.setups(EMPTY):
            missing = [seed for seed in job.config.seeds if job.world.is_main and job.load(EMPTY, setup, seed) is None]
            if missing:
                paths = [job.scores_path(EMPTY, setup, seed) for seed in missing]
                self._submit(EMPTY, (None, setup, False), partial(self._save, EMPTY, paths, {}))

    def submit(self, name: str, seed: int, stores: Mapping[Setup, PredictionStore], *, gated: bool) -> None:
        """Predictions are removed from the disk once all of them are scored."""
        if not self.job.world.is_main:
            return
        left = set(stores)

        def save(setup: Setup, examples: Examples, scores: Scores) -> None:
            scores.numbers.update(stores[setup].cost)
            self._save(name, [self.job.scores_path(name, setup, seed)], examples, scores)
            left.discard(setup)
            if not left:
                for store in stores.values():
                    store.remove()

        for setup, store in stores.items():
            examples = self._examples(store, seed)
            self._submit(name, (store.folder, setup, gated), partial(save, setup, examples))
        self.save_finished(wait=False)

    def save_finished(self, *, wait: bool) -> None:
        """In the order of submission."""
        while self.pending and (wait or self.pending[0].scores.done()):
            oldest = self.pending.pop(0)
            try:
                oldest.save(oldest.scores.result())
            except EvaluationError as error:
                self.failures[oldest.method] = str(error)
            self.job.progress("Scoring", self.submitted - len(self.pending), self.submitted)

    def _submit(self, name: str, stored: tuple[Path | None, Setup, bool], save: Callable[[Scores], None]) -> None:
        self.submitted += 1
        if self.pool is not None:
            self.pending.append(Pending(name, self.pool.submit(score_stored, self.truth, *stored), save))
            return
        save(score_stored(self.truth, *stored))
        self.job.progress("Scoring", self.submitted, self.submitted)

    def _save(self, name: str, paths: list[Path], examples: Examples, scores: Scores) -> None:
        for path in paths:
            save_scores(scores, path, self.job.provenance(name), examples)

    def _examples(self, store: PredictionStore, seed: int) -> Examples:
        if seed != self.job.config.seeds[0]:
            return {}
        return {name: np.array(store[name][self.job.example_positions]) for name in ("maps", "masks")}


def _workers(n_slices: int) -> int:
    """1: in this process."""
    if n_slices < WORKER_SLICES:
        return 1
    return max(1, min(cpu_cores(), SLICES_AT_ONCE // n_slices))
