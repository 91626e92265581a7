"""A fit from scans and labels to a model and its page. Re-running it resumes."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anofpdm.cohorts.store import Cohort
from anofpdm.errors import CalibrationError, ConfigError, TrainingError
from anofpdm.fit import stages
from anofpdm.fit.config import DEFAULT_STEPS, PAGE, FitConfig, check_and_record
from anofpdm.fit.estimate import Estimate, describe_seconds, estimate_time, measure_speed
from anofpdm.fit.page import FitResult, render_page
from anofpdm.network.predictor import load_trained
from anofpdm.network.training.log import loss_jump, minutes_trained
from anofpdm.student.model import Student
from anofpdm.util.files import write_atomically
from anofpdm.util.progress import Progress, silent

OnNote = Callable[[str], None]


@dataclass(frozen=True)
class Reports:
    """Where a fit reports to."""

    note: OnNote = lambda _: None
    progress: Progress = silent


def run_fit(config: FitConfig, device: torch.device, reports: Reports | None = None) -> FitResult:
    reports = reports or Reports()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "fit runs in one process; for several, run prepare, train, calibrate and distill with torchrun"
        )
    check_and_record(config)
    cohort = _prepare(config, reports)
    _train(config, cohort, device, reports)
    result = _calibrate_and_distil(config, cohort, device, reports)
    write_atomically(config.out / PAGE, render_page(config, result).encode(errors="replace"))
    reports.note(f"5/5 page: {config.out / PAGE}")
    return result


def _prepare(config: FitConfig, reports: Reports) -> Cohort:
    cohort = stages.prepare_cohort(config, reports.progress)
    scans, failed = cohort.manifest["scans"], cohort.manifest["failed"]
    modalities = ", ".join(cohort.modalities)
    reports.note(f"1/5 prepare: {scans} scans, {len(cohort)} slices of {modalities} in {cohort.path}")
    for note in (*cohort.notes, *(f"failed: {scan}: {reason}" for scan, reason in failed.items())):
        reports.note(note)
    stages.check_labels(cohort)  # the notes may explain why there are too few
    return cohort


def _train(config: FitConfig, cohort: Cohort, device: torch.device, reports: Reports) -> None:
    if stages.is_trained(config):
        reports.note(f"2/5 train: complete, {stages.trained_step(config)} steps")
        return
    speed = measure_speed(config, cohort, device)
    step = stages.trained_step(config)
    estimate = estimate_time(config, cohort, speed, step, minutes_trained(config.out))
    for line in describe_estimate(config, estimate, 1 / speed.training_step, device):
        reports.note(line)
    stages.train_model(config, cohort, device, reports.progress)
    reports.note(f"2/5 train: {stages.trained_step(config)} steps")
    if jump := loss_jump(config.out):
        reports.note(
            f"note: the loss jumped from {jump.before:.2g} to {jump.after:.2g} near step {jump.step}; the model may be "
            "worse for it: fit again with another --seed and --out"
        )


def describe_estimate(
    config: FitConfig, estimate: Estimate, steps_per_second: float, device: torch.device
) -> list[str]:
    total = describe_seconds(estimate.total)
    parts = {"training": estimate.training, "calibration": estimate.calibration, "student": estimate.distillation}
    lines = [
        f"estimated time: {total} ("
        + ", ".join(f"{name} {describe_seconds(seconds)}" for name, seconds in parts.items())
        + f"); {steps_per_second:.3g} training steps per second on {device}"
    ]
    if device.type == "cpu":
        lines.append(
            f"warning: no GPU is used. {estimate.steps:,} training steps take {estimate.training / 3600:.2g} hours on "
            "this CPU. Use a machine with a GPU, or a smaller network and slices (--preset tiny --size 64)"
        )
    if config.budget.minutes is not None and estimate.steps < DEFAULT_STEPS / 2:
        lines.append(
            f"note: about {estimate.steps} steps fit into the time; a useful model took 3,500 to 10,000 on real scans"
        )
    return lines


def _calibrate_and_distil(config: FitConfig, cohort: Cohort, device: torch.device, reports: Reports) -> FitResult:
    model = load_trained(config.out, device)
    calibration, state = stages.load_finished_calibration(config, model), "complete, "
    if calibration is None:
        state = ""
        try:
            calibration = stages.calibrate_model(config, model, cohort, reports.progress)
        except CalibrationError as problem:
            raise CalibrationError(f"{problem} (re-run `anofpdm fit` with more --steps or --minutes)") from None
    auc = calibration.with_context(calibration.context_mm).curve_accuracy.auc
    reports.note(f"3/5 calibrate: {state}guidance strength {calibration.strength:g}, detector AUC {auc:.3f}")
    student, problem_of_student = stages.load_finished_student(model, calibration), ""
    state = "complete, " if student else ""
    if student is None:
        try:
            student = stages.distill_model(config, model, calibration, cohort, reports.progress)
        except TrainingError as problem:
            problem_of_student = str(problem)
    reports.note(f"4/5 distil: {state}{_describe_student(student)}{problem_of_student}")
    return FitResult(cohort, model, calibration, student, problem_of_student)


def _describe_student(student: Student | None) -> str:
    return "no student; " if student is None else f"student AUC {student.calibration.auc:.3f}"
