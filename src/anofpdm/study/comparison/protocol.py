"""The paper's comparison: every method on the same slices, with the same post-processing and the same metrics.

Evidence methods are calibrated with image-level labels of the validation split; comparison methods are tuned with its
lesion masks, as their authors do. Both are then run on the test split, once a seed. Results are stored by method, and
running again computes only what is missing.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.calibration.fit_calibration import check_model_fits
from anofpdm.cohorts.store import check_slices
from anofpdm.errors import CalibrationError, ConfigError, EvaluationError, MethodError
from anofpdm.study.comparison.calibrations import calibrate_methods
from anofpdm.study.comparison.job import EvaluationJob
from anofpdm.study.comparison.method_results import WORK, PredictionStore
from anofpdm.study.comparison.method_scoring import Scorer
from anofpdm.study.comparison.methods import EvidenceMethod, ReconstructionMethod, StudentMethod
from anofpdm.study.comparison.names import Setup
from anofpdm.study.comparison.predictions import (
    Workload,
    new_store,
    predict_from_evidence,
    predict_with_student,
    reconstruct_maps,
    threshold_maps,
)
from anofpdm.study.comparison.rival_models import STUDENT_EVALUATIONS, CostMeter, check_student_fits
from anofpdm.study.comparison.tuning import tune
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically

Failures = dict[str, str]  # methods that could not be evaluated, and why


def evaluate(job: EvaluationJob) -> Failures:
    """Inputs are checked before anything is written. A method that fails does not stop the others."""
    if all(isinstance(job.methods.registry[name], StudentMethod) for name in job.methods.names):
        check_student_fits(job.models.required("student"), job.model.folder, job.cohort)
    else:
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

    with locked_results(job.out, job.settings(), job.world), Scorer.start(job) as scorer:
        scorer.submit_empty()
        by_encoding: dict[str, dict[str, EvidenceMethod]] = {}
        for name in job.methods.names:
            method = job.methods.registry[name]
            if isinstance(method, ReconstructionMethod):
                with recorded(name):
                    run_reconstruction(job, name, method, scorer)
            elif isinstance(method, StudentMethod):
                run_student(job, name, method, scorer)
            else:
                by_encoding.setdefault(method.encoding, {})[name] = method
        for _, some in sorted(by_encoding.items()):
            with recorded(*some):
                run_evidence_methods(job, some, scorer)
    return failures | scorer.failures


@contextlib.contextmanager
def locked_results(out: Path, settings: dict[str, Any], world: World) -> Iterator[None]:
    """For one run at a time. All results of a folder share their settings."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "settings.json"
    stored = json.loads(path.read_text()) if path.is_file() else settings
    if stored != settings:
        differing = ", ".join(sorted(name for name in settings if stored.get(name) != settings[name]))
        raise ConfigError(f"{out}: holds an evaluation with different {differing}; choose another --out")
    world.all_gather(None)
    with folder_lock(out, needed=world.is_main):
        if world.is_main:
            shutil.rmtree(out / WORK, ignore_errors=True)  # of a run that was killed
            for folder in (out, *out.glob("methods/*")):
                remove_temporary_files(folder)
            write_atomically(path, json.dumps(settings, indent=2).encode())
        yield


# ---- kinds of methods, once a seed; results that exist are kept ------------------------------------------------------


def run_evidence_methods(job: EvaluationJob, methods: dict[str, EvidenceMethod], scorer: Scorer) -> None:
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
        for name, store in stores.items():
            store.cost = cost
            scorer.submit(name, seed, dict.fromkeys(job.setups(name), store), gated=True)


def run_student(job: EvaluationJob, name: str, method: StudentMethod, scorer: Scorer) -> None:
    """The student uses no noise: every seed gives the same result."""
    rows, student = job.evaluation_set.rows, job.models.required("student")
    for seed in job.config.seeds:
        if job.is_done(name, seed):
            continue
        store = new_store(job, f"{name}-{seed}", len(rows))
        meter = CostMeter(job.models, job.world)
        predict_with_student(student, store, Workload(job, rows, seed, f"{name}, seed {seed}"), method.without)
        store.cost = {**meter.cost(len(rows)), "evaluations": STUDENT_EVALUATIONS}
        job.world.all_gather(None)
        scorer.submit(name, seed, dict.fromkeys(job.setups(name), store), gated=True)


def run_reconstruction(job: EvaluationJob, name: str, method: ReconstructionMethod, scorer: Scorer) -> None:
    rows = job.evaluation_set.rows
    for seed in job.config.seeds:
        if job.is_done(name, seed):
            continue
        tuned, stores = tune(job, name, method), dict[Setup, PredictionStore]()
        for setup in sorted(job.setups(name)):  # mixed, which has all slices, first
            same = [done for other, done in stores.items() if tuned[other].setting == tuned[setup].setting]
            store = stores[setup] = new_store(job, f"{name}-{setup}-{seed}", len(rows))
            if same:  # maps of the same setting are copied
                store.cost = same[0].cost
                if job.world.is_main:
                    store["maps"][:] = same[0]["maps"]
            else:
                positions = np.arange(len(rows))[job.evaluation_set.positions(setup)]
                meter = CostMeter(job.models, job.world)
                work = Workload(job, rows, seed, f"{name}, {setup}, seed {seed}")
                reconstruct_maps(method, tuned[setup].setting, store, meter.models, work, positions)
                store.cost = meter.cost(len(positions))
            job.world.all_gather(None)
            threshold_maps(store, tuned[setup].threshold, job.world)
        scorer.submit(name, seed, stores, gated=False)
