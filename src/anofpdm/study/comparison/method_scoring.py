"""Predictions are scored by worker processes while the network works on the next method."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from anofpdm.errors import EvaluationError
from anofpdm.study.comparison.job import EvaluationJob
from anofpdm.study.comparison.method_results import WORK, PredictionStore, score_method
from anofpdm.study.comparison.names import EMPTY, Setup
from anofpdm.util.files import translate_write_errors
from anofpdm.util.workers import cpu_cores, worker_pool

WORKER_SLICES = 400  # fewer are scored sooner than a worker starts
SLICES_AT_ONCE = 40_000  # in all workers together: each holds copies of its maps and masks


@dataclass
class Scorer:
    """In the main process; the others only wait."""

    job: EvaluationJob
    pool: Executor
    failures: dict[str, str] = field(default_factory=dict)  # by method
    pending: list[tuple[str, Future[None]]] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def start(cls, job: EvaluationJob) -> Iterator["Scorer"]:
        """Once everything has been submitted, waits for the scores."""
        workers = _workers(len(job.evaluation_set.rows)) if job.world.is_main else 1
        with ThreadPoolExecutor(1) as thread, worker_pool(workers) as processes:
            scorer = cls(job, processes or thread)
            if job.world.is_main:
                with translate_write_errors(scorer.truth):
                    job.evaluation_set.save(scorer.truth)
            yield scorer
            scorer._wait()
        job.world.all_gather(None)
        shutil.rmtree(job.out / WORK, ignore_errors=True)

    @property
    def truth(self) -> Path:
        return self.job.out / WORK / "truth"

    def submit_empty(self) -> None:
        """The row `all-empty`."""
        for seed in self.job.config.seeds:
            if not self.job.is_done(EMPTY, seed):
                self.submit(EMPTY, seed, dict.fromkeys(self.job.setups(EMPTY)), gated=False)

    def submit(self, name: str, seed: int, stores: Mapping[Setup, PredictionStore | None], *, gated: bool) -> None:
        job = self.job
        if not job.world.is_main:
            return
        results = {setup: job.scores_path(name, setup, seed) for setup in stores}
        examples = job.example_positions if seed == job.config.seeds[0] else None
        future = self.pool.submit(score_method, self.truth, stores, results, job.provenance(name), examples, gated)
        self.pending.append((name, future))

    def _wait(self) -> None:
        for number, (name, scored) in enumerate(self.pending, start=1):
            try:
                scored.result()
            except EvaluationError as error:
                self.failures[name] = str(error)
            self.job.progress("Scoring", number, len(self.pending))


def _workers(n_slices: int) -> int:
    """1: in this process."""
    if n_slices < WORKER_SLICES:
        return 1
    return max(1, min(cpu_cores(), SLICES_AT_ONCE // n_slices))
