"""The paper's comparison: every method on the same slices, with the same post-processing and the same metrics.

Evidence methods are calibrated with image-level labels of the validation split; comparison methods are tuned with its
lesion masks, as their authors do. Both are then run on the test split, once a seed. Results are stored by method, and
running again computes only what is missing.
"""

import functools
from collections.abc import Callable

import numpy as np

from anofpdm.calibration.fit import check_model_fits
from anofpdm.cohorts.store import check_slices
from anofpdm.errors import EvaluationError, MethodError
from anofpdm.evaluation.comparison.job import EvaluationJob
from anofpdm.evaluation.comparison.methods import ReconstructionMethod, StudentMethod
from anofpdm.evaluation.comparison.runners import (
    run_evidence_methods,
    run_reconstruction,
    run_student,
    score_empty_masks,
)

Failures = dict[str, str]  # methods that could not be evaluated, and why


def evaluate(job: EvaluationJob) -> Failures:
    """Inputs are checked before anything is written. A method that fails does not stop the others."""
    check_model_fits(job.model, job.cohort)
    calibration_rows = job.cohort.rows(job.config.calibration.split)
    check_slices(job.cohort, np.union1d(job.evaluation_set.rows, calibration_rows))
    failures: Failures = {}

    def attempt(names: tuple[str, ...], run: Callable[[], None]) -> None:
        try:
            run()
        except (EvaluationError, MethodError) as error:  # raised in all processes
            failures.update(dict.fromkeys(names, str(error)))

    with job.folder.locked(job.settings(), job.world):
        if job.world.is_main:
            score_empty_masks(job)
        for name in job.methods.names:
            method = job.methods.registry[name]
            if isinstance(method, ReconstructionMethod):
                attempt((name,), functools.partial(run_reconstruction, job, name, method))
            if isinstance(method, StudentMethod):
                run_student(job, name)
        evidence_methods = job.methods.evidence_methods()
        for encoding in sorted({method.encoding for method in evidence_methods.values()}):
            some = {name: method for name, method in evidence_methods.items() if method.encoding == encoding}
            attempt(tuple(some), functools.partial(run_evidence_methods, job, some))
    return failures
