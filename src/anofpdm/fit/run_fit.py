"""A fit from scans and labels to a model and its page. Re-running it resumes."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import CalibrationError, CohortError, ConfigError, TrainingError
from anofpdm.fit import stages
from anofpdm.fit.estimate import Estimate, Speed, Work, measure_speed
from anofpdm.fit.fit_config import PAGE, FitConfig
from anofpdm.fit.fit_page import FitResult, render_page
from anofpdm.fit.preview import Preview, preview
from anofpdm.fit.record import check_settings, count_minutes, load_record, record_settings
from anofpdm.network.predictor import load_trained
from anofpdm.network.training.log import loss_jump, minutes_trained
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
    check_alone()
    check_settings(config)
    plan, speed = None, None
    if not config.has_begun_training:
        plan = stages.plan_data(config)
        speed = _foresee(config, plan, device)[1].speed
    with _nothing_left_behind(config.out, unless=config.cohort / MANIFEST):
        record_settings(config)
        cohort = _prepare(config, plan, reports)
    _train(config, cohort, speed, device, reports)
    result = _calibrate_and_distil(config, cohort, device, reports)
    write_atomically(config.out / PAGE, render_page(config, result).encode(errors="replace"))
    reports.note(f"5/5 page: {config.out / PAGE}")
    return result


def preview_fit(config: FitConfig, device: torch.device, reports: Reports) -> bool:
    """Check labels, files and split, and estimate the time, without writing anything. Returns whether all scans can be
    used."""
    check_alone()
    check_settings(config)
    seen, estimate = _foresee(config, stages.plan_data(config), device, reports.note)
    for line in estimate.describe(device):
        reports.note(line)
    reports.note("note: preparing the scans takes time in addition; nothing was written")
    return not seen.failed


def check_alone() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "fit runs in one process; for several, run prepare, train, calibrate and distill with torchrun"
        )


def _foresee(
    config: FitConfig, plan: Plan, device: torch.device, note: OnNote = lambda _: None
) -> tuple[Preview, Estimate]:
    """From file headers; raises if the time is too short."""
    seen = preview(plan)
    for line in seen.describe():
        note(line)
    return seen, _estimate(config, seen.work, measure_speed(config, len(plan.modalities), device))


def _estimate(config: FitConfig, work: Work, speed: Speed) -> Estimate:
    minutes = sum(load_record(config).minutes.values())
    trained = minutes_trained(config.out)
    estimate = Estimate(config.budget, work, speed, stages.trained_step(config), trained, minutes)
    estimate.check_enough()
    return estimate


@contextlib.contextmanager
def _nothing_left_behind(folder: Path, unless: Path) -> Iterator[None]:
    """If the scans cannot be used, remove what was not in the folder before, `unless` a file is complete. After an
    interruption or a full disk, all is kept for the next run."""
    before = set(folder.iterdir()) if folder.is_dir() else None
    try:
        yield
    except CohortError:
        if not unless.is_file():
            for path in [folder] if before is None else set(folder.iterdir()) - before:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def _prepare(config: FitConfig, plan: Plan | None, reports: Reports) -> Cohort:
    with count_minutes(config, "prepare"):
        cohort = stages.prepare_cohort(config, _until_out_of_time(config, reports.progress), plan)
    scans, failed = cohort.manifest.scans, cohort.manifest.failed
    modalities = ", ".join(cohort.modalities)
    reports.note(f"1/5 prepare: {scans} scans, {len(cohort)} slices of {modalities} in {cohort.path}")
    for note in (*cohort.notes, *(f"failed: {scan}: {reason}" for scan, reason in failed.items())):
        reports.note(note)
    stages.check_labels(cohort)  # the notes may explain why there are too few
    return cohort


def _until_out_of_time(config: FitConfig, progress: Progress) -> Progress:
    """Stops preparing when all of --minutes is used up."""
    budget, start, before = config.budget, time.monotonic(), sum(load_record(config).minutes.values())

    def update(task: str, done: float, total: float, note: str = "") -> None:
        progress(task, done, total, note)
        if budget.minutes is not None and before + (time.monotonic() - start) / 60 > budget.minutes and done < total:
            raise TrainingError(f"{budget}: used up by preparing {done:g} of {total:g} scans; re-run with more")

    return update


def _train(config: FitConfig, cohort: Cohort, speed: Speed | None, device: torch.device, reports: Reports) -> None:
    if stages.is_trained(config):
        reports.note(f"2/5 train: complete, {stages.trained_step(config)} steps")
        return
    speed = speed or measure_speed(config, len(cohort.modalities), device)
    estimate = _estimate(config, Work.of(cohort), speed)
    for line in estimate.describe(device):
        reports.note(line)
    stages.train_model(config, cohort, estimate, device, reports.progress)
    reports.note(f"2/5 train: {stages.trained_step(config)} steps")
    if jump := loss_jump(config.out):
        reports.note(
            f"note: the loss jumped from {jump.before:.2g} to {jump.after:.2g} near step {jump.step}; the model may be "
            "worse for it: fit again with another --seed and --out"
        )


def _calibrate_and_distil(config: FitConfig, cohort: Cohort, device: torch.device, reports: Reports) -> FitResult:
    model = load_trained(config.out, device)
    calibration, state = stages.load_finished_calibration(config, model), "complete, "
    if calibration is None:
        state = ""
        try:
            with count_minutes(config, "calibrate"):
                calibration = stages.calibrate_model(config, model, cohort, reports.progress)
        except CalibrationError as problem:
            raise CalibrationError(f"{problem} (re-run `anofpdm fit` with more --steps or --minutes)") from None
    auc = calibration.with_context(calibration.context_mm).curve_accuracy.auc
    reports.note(f"3/5 calibrate: {state}guidance strength {calibration.strength:g}, detector AUC {auc:.3f}")
    student, why_none = stages.load_finished_student(model, calibration), ""
    state = "complete, " if student else ""
    if student is None:
        try:
            with count_minutes(config, "distil"):
                student = stages.distill_model(config, model, calibration, cohort, reports.progress)
        except TrainingError as problem:
            why_none = str(problem)
    rating = f"student AUC {student.calibration.auc:.3f}" if student else f"no student; {why_none}"
    reports.note(f"4/5 distil: {state}{rating}")
    return FitResult(cohort, model, calibration, student, why_none)
