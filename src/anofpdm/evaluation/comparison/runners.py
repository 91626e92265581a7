"""Runs each kind of method on the evaluation set, once a seed, and stores its scores. Results that exist are kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from anofpdm.evaluation.comparison.calibrations import calibrate_methods
from anofpdm.evaluation.comparison.cost import STUDENT_EVALUATIONS, Cost, CostMeter
from anofpdm.evaluation.comparison.job import EvaluationJob
from anofpdm.evaluation.comparison.methods import EvidenceMethod, ReconstructionMethod
from anofpdm.evaluation.comparison.models import required
from anofpdm.evaluation.comparison.names import EMPTY, Setup
from anofpdm.evaluation.comparison.predictions import (
    predict_from_evidence,
    predict_with_student,
    reconstruct_maps,
    threshold_maps,
)
from anofpdm.evaluation.comparison.results import Examples, save_scores
from anofpdm.evaluation.comparison.scores import Predictions, Scores, score_empty, score_predictions, without_detector
from anofpdm.evaluation.comparison.store import PredictionStore
from anofpdm.evaluation.comparison.tuning import Tuned, tune


@dataclass(frozen=True)
class Outcome:
    """Predictions of a method in one setup."""

    store: PredictionStore
    cost: Cost


def run_evidence_methods(job: EvaluationJob, methods: dict[str, EvidenceMethod]) -> None:
    """Methods of one encoding, in one pass of the network a seed."""
    rows = job.evaluation_set.rows
    for seed in job.config.seeds:
        done = {name: job.is_done(name, seed) for name in methods}
        left = {name: method for name, method in methods.items() if not done[name]}
        if not left:
            continue
        calibrations = calibrate_methods(job, left)
        stores = {name: job.new_store(f"{name}-{seed}", len(rows)) for name in left}
        meter = CostMeter(job.models, job.world)
        (encoding,) = {method.encoding for method in left.values()}
        work = job.workload(rows, seed, f"Evidence ({encoding}), seed {seed}")
        predict_from_evidence(left, stores, calibrations, meter.models, work)
        cost = meter.cost(len(rows))
        for name, store in stores.items():
            _score(job, name, dict.fromkeys(job.setups(name), Outcome(store, cost)), seed, gated=True)


def run_student(job: EvaluationJob, name: str) -> None:
    """The student uses no noise: every seed gives the same result."""
    rows, student = job.evaluation_set.rows, required(job.models.student, "student")
    for seed in job.config.seeds:
        if job.is_done(name, seed):
            continue
        store = job.new_store(f"{name}-{seed}", len(rows))
        meter = CostMeter(job.models, job.world)
        predict_with_student(student, store, job.workload(rows, seed, f"{name}, seed {seed}"))
        cost = replace(meter.cost(len(rows)), evaluations=STUDENT_EVALUATIONS)
        job.world.all_gather(None)
        _score(job, name, dict.fromkeys(job.setups(name), Outcome(store, cost)), seed, gated=True)


def run_reconstruction(job: EvaluationJob, name: str, method: ReconstructionMethod) -> None:
    for seed in job.config.seeds:
        if job.is_done(name, seed):
            continue
        tuned, outcomes = tune(job, name, method), dict[Setup, Outcome]()
        for setup in sorted(job.setups(name)):  # mixed, which has all slices, first
            outcomes[setup] = _reconstruct(job, name, method, setup, seed, tuned, outcomes)
        _score(job, name, outcomes, seed, gated=False)


def _reconstruct(
    job: EvaluationJob,
    name: str,
    method: ReconstructionMethod,
    setup: Setup,
    seed: int,
    tuned: Mapping[Setup, Tuned],
    before: Mapping[Setup, Outcome],
) -> Outcome:
    """Maps are copied from another setup that has the same setting."""
    rows, setting = job.evaluation_set.rows, tuned[setup].setting
    store = job.new_store(f"{name}-{setup}-{seed}", len(rows))
    same = next((outcome for other, outcome in before.items() if tuned[other].setting == setting), None)
    if same is None:
        positions = np.arange(len(rows))[job.evaluation_set.positions(setup)]
        meter = CostMeter(job.models, job.world)
        work = job.workload(rows, seed, f"{name}, {setup}, seed {seed}")
        reconstruct_maps(method, setting, store, meter.models, work, positions)
        cost = meter.cost(len(positions))
    else:
        cost = same.cost
        if job.world.is_main:
            store["maps"][:] = same.store["maps"]
    job.world.all_gather(None)
    threshold_maps(store, tuned[setup].threshold, job.world)
    return Outcome(store, cost)


# ---- scoring ---------------------------------------------------------------------------------------------------------


def score_empty_masks(job: EvaluationJob) -> None:
    """The row `all-empty`."""
    for setup in job.evaluation_set.setups:
        missing = [seed for seed in job.config.seeds if job.load(EMPTY, setup, seed) is None]
        scores = score_empty(job.evaluation_set.truth.take(job.evaluation_set.positions(setup)))
        scores = without_detector(scores) if setup == Setup.UNHEALTHY else scores
        for seed in missing:
            save_scores(scores, job.folder.scores(EMPTY, setup, seed), job.provenance(EMPTY), {})


def _score(job: EvaluationJob, name: str, outcomes: Mapping[Setup, Outcome], seed: int, *, gated: bool) -> None:
    """Scores of stored predictions, whose disk space is then freed."""
    if job.world.is_main:
        task = f"Scoring {name}, seed {seed}"
        for number, (setup, outcome) in enumerate(outcomes.items()):
            job.progress(task, number, len(outcomes))
            scores = _setup_scores(job, setup, outcome.store, gated=gated)
            scores.numbers.update({"evaluations": outcome.cost.evaluations, "seconds": outcome.cost.seconds})
            path = job.folder.scores(name, setup, seed)
            save_scores(scores, path, job.provenance(name), _examples(job, outcome.store, seed))
        job.progress(task, len(outcomes), len(outcomes))
    job.world.all_gather(None)
    for store in {id(outcome.store): outcome.store for outcome in outcomes.values()}.values():
        if job.world.is_main:
            store.remove()


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
    positions = job.evaluation_set.example_positions(job.config.examples)
    return {"maps": np.array(store["maps"][positions]), "masks": np.array(store["masks"][positions])}
