"""The paper's comparison: every method on the same slices, with the same post-processing and the same metrics.

Evidence methods are calibrated with image-level labels of the validation split; comparison methods are tuned with its
lesion masks, as their authors do. Both are then run on the test split, once a seed. Results are stored by method, and
running again computes only what is missing.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from anofpdm.calibration.fit import check_model_fits
from anofpdm.cohorts.store import check_slices
from anofpdm.errors import CalibrationError, EvaluationError, MethodError
from anofpdm.evaluation.comparison.calibrations import calibrate_methods
from anofpdm.evaluation.comparison.job import EvaluationJob
from anofpdm.evaluation.comparison.methods import EvidenceMethod, ReconstructionMethod, StudentMethod
from anofpdm.evaluation.comparison.models import STUDENT_EVALUATIONS, CostMeter, required
from anofpdm.evaluation.comparison.names import EMPTY, Setup
from anofpdm.evaluation.comparison.predictions import (
    PredictionStore,
    Workload,
    new_store,
    predict_from_evidence,
    predict_with_student,
    reconstruct_maps,
    threshold_maps,
)
from anofpdm.evaluation.comparison.results import Examples, save_scores
from anofpdm.evaluation.comparison.scores import Predictions, Scores, score_empty, score_predictions, without_detector
from anofpdm.evaluation.comparison.tuning import Tuned, tune
from anofpdm.util.workers import map_in_threads

SCORING_THREADS = 2  # each needs a copy of all maps
Failures = dict[str, str]  # methods that could not be evaluated, and why


def evaluate(job: EvaluationJob) -> Failures:
    """Inputs are checked before anything is written. A method that fails does not stop the others."""
    check_model_fits(job.model, job.cohort)
    calibration_rows = job.cohort.rows(job.config.calibration.split)
    check_slices(job.cohort, np.union1d(job.evaluation_set.rows, calibration_rows))
    failures: Failures = {}

    @contextlib.contextmanager
    def recorded(*names: str) -> Iterator[None]:
        try:
            yield
        except (CalibrationError, EvaluationError, MethodError) as error:  # raised in all processes
            failures.update(dict.fromkeys(names, str(error)))

    with job.folder.locked(job.settings(), job.world):
        if job.world.is_main:
            score_empty_masks(job)
        by_encoding: dict[str, dict[str, EvidenceMethod]] = {}
        for name in job.methods.names:
            method = job.methods.registry[name]
            if isinstance(method, ReconstructionMethod):
                with recorded(name):
                    run_reconstruction(job, name, method)
            elif isinstance(method, StudentMethod):
                run_student(job, name)
            else:
                by_encoding.setdefault(method.encoding, {})[name] = method
        for _, some in sorted(by_encoding.items()):
            with recorded(*some):
                run_evidence_methods(job, some)
    return failures


# ---- kinds of methods, once a seed; results that exist are kept ------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Predictions of a method in one setup."""

    store: PredictionStore
    cost: Mapping[str, float]


Outcomes = Mapping[Setup, Outcome]


def run_evidence_methods(job: EvaluationJob, methods: dict[str, EvidenceMethod]) -> None:
    """Methods of one encoding, in one pass of the network a seed."""
    rows = job.evaluation_set.rows
    (encoding,) = {method.encoding for method in methods.values()}
    for seed in job.config.seeds:
        left = {name: method for name, method in methods.items() if not job.is_done(name, seed)}
        if not left:
            continue
        calibrations = calibrate_methods(job, left)
        stores = {name: new_store(job, f"{name}-{seed}", len(rows)) for name in left}
        meter = CostMeter(job.models, job.world)
        work = Workload(job, rows, seed, f"Evidence ({encoding}), seed {seed}")
        predict_from_evidence(left, stores, calibrations, meter.models, work)
        cost = meter.cost(len(rows))
        predicted = {name: dict.fromkeys(job.setups(name), Outcome(store, cost)) for name, store in stores.items()}
        _score(job, predicted, seed, gated=True)


def run_student(job: EvaluationJob, name: str) -> None:
    """The student uses no noise: every seed gives the same result."""
    rows, student = job.evaluation_set.rows, required(job.models.student, "student")
    for seed in job.config.seeds:
        if job.is_done(name, seed):
            continue
        store = new_store(job, f"{name}-{seed}", len(rows))
        meter = CostMeter(job.models, job.world)
        predict_with_student(student, store, Workload(job, rows, seed, f"{name}, seed {seed}"))
        outcome = Outcome(store, {**meter.cost(len(rows)), "evaluations": STUDENT_EVALUATIONS})
        job.world.all_gather(None)
        _score(job, {name: dict.fromkeys(job.setups(name), outcome)}, seed, gated=True)


def run_reconstruction(job: EvaluationJob, name: str, method: ReconstructionMethod) -> None:
    for seed in job.config.seeds:
        if job.is_done(name, seed):
            continue
        tuned, outcomes = tune(job, name, method), dict[Setup, Outcome]()
        for setup in sorted(job.setups(name)):  # mixed, which has all slices, first
            same = [one for other, one in outcomes.items() if tuned[other].setting == tuned[setup].setting]
            outcomes[setup] = _reconstruct(job, name, method, setup, seed, tuned[setup], same)
        _score(job, {name: outcomes}, seed, gated=False)


def _reconstruct(
    job: EvaluationJob,
    name: str,
    method: ReconstructionMethod,
    setup: Setup,
    seed: int,
    tuned: Tuned,
    same: list[Outcome],  # of setups with the same setting, from which maps are copied
) -> Outcome:
    rows = job.evaluation_set.rows
    store = new_store(job, f"{name}-{setup}-{seed}", len(rows))
    if same:
        cost = same[0].cost
        if job.world.is_main:
            store["maps"][:] = same[0].store["maps"]
    else:
        positions = np.arange(len(rows))[job.evaluation_set.positions(setup)]
        meter = CostMeter(job.models, job.world)
        work = Workload(job, rows, seed, f"{name}, {setup}, seed {seed}")
        reconstruct_maps(method, tuned.setting, store, meter.models, work, positions)
        cost = meter.cost(len(positions))
    job.world.all_gather(None)
    threshold_maps(store, tuned.threshold, job.world)
    return Outcome(store, cost)


# ---- scoring ---------------------------------------------------------------------------------------------------------


def score_empty_masks(job: EvaluationJob) -> None:
    """The row `all-empty`."""
    for setup in job.setups(EMPTY):
        scores = score_empty(job.evaluation_set.truth.take(job.evaluation_set.positions(setup)))
        scores = without_detector(scores) if setup == Setup.UNHEALTHY else scores
        for seed in job.config.seeds:
            if job.load(EMPTY, setup, seed) is None:
                save_scores(scores, job.folder.scores(EMPTY, setup, seed), job.provenance(EMPTY), {})


def _score(job: EvaluationJob, predicted: Mapping[str, Outcomes], seed: int, *, gated: bool) -> None:
    """Scores of the stored predictions of some methods, whose disk space is then freed."""
    scored = [(name, setup, outcome) for name, outcomes in predicted.items() for setup, outcome in outcomes.items()]

    def score(one: tuple[str, Setup, Outcome]) -> None:
        name, setup, outcome = one
        scores = _setup_scores(job, setup, outcome.store, gated=gated)
        scores.numbers.update(outcome.cost)
        path = job.folder.scores(name, setup, seed)
        save_scores(scores, path, job.provenance(name), _examples(job, outcome.store, seed))

    if job.world.is_main:
        task = f"Scoring {', '.join(predicted)}, seed {seed}"
        for done, _ in enumerate(map_in_threads(score, scored, SCORING_THREADS), 1):
            job.progress(task, done, len(scored))
    job.world.all_gather(None)
    if job.world.is_main:
        for _, _, outcome in scored:
            outcome.store.remove()


def _setup_scores(job: EvaluationJob, setup: Setup, store: PredictionStore, *, gated: bool) -> Scores:
    """In the mixed setup a detector empties the masks of slices that it calls healthy."""
    positions = job.evaluation_set.positions(setup)
    maps, masks = store["maps"][positions], np.array(store["masks"][positions])
    with_small = maps >= store["threshold"][positions][:, None, None]
    detected = np.array(store["detected"][positions])
    if gated and setup == Setup.MIXED:
        masks &= detected[:, None, None]
        with_small &= detected[:, None, None]
    predictions = Predictions(maps, masks, detected, np.array(store["score"][positions]), with_small)
    scores = score_predictions(predictions, job.evaluation_set.truth.take(positions))
    return without_detector(scores) if setup == Setup.UNHEALTHY else scores


def _examples(job: EvaluationJob, store: PredictionStore, seed: int) -> Examples:
    if seed != job.config.seeds[0]:
        return {}
    return {name: np.array(store[name][job.example_positions]) for name in ("maps", "masks")}
