"""The stages of a fit. Each is skipped when its result is complete, and resumes as its own command does."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from anofpdm.calibration.calibration_file import load_calibration, save_calibration
from anofpdm.calibration.figure import draw_calibration
from anofpdm.calibration.fit_calibration import CalibrationConfig, fit_calibration
from anofpdm.cohorts.plan import Plan, plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.cohorts.store import Cohort, open_cohort
from anofpdm.errors import CalibrationError, CohortError, ConfigError, ModelError
from anofpdm.fit.estimate import Estimate
from anofpdm.fit.fit_config import LEARNING_RATE, FitConfig
from anofpdm.fit.record import change_record, load_record, student_minutes
from anofpdm.fit.split import check_kinds, draw_split
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.gather import batch_for
from anofpdm.network.checkpoint import STATE, holds_model, load_model, load_state
from anofpdm.network.config import preset
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.training import run_training
from anofpdm.network.training.batches import training_rows
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.options import Split, Task
from anofpdm.student.distillation import DistillConfig, distill
from anofpdm.student.student import FOLDER, Student, load_student
from anofpdm.student.targets import fingerprint
from anofpdm.student.train_student import StudentTrainingConfig
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock
from anofpdm.util.progress import Progress

SHORTEST = 1e-3  # minutes

# ---- prepare ---------------------------------------------------------------------------------------------------------


def prepare_cohort(config: FitConfig, progress: Progress, plan: Plan | None = None) -> Cohort:
    """Once training has begun, its cohort stays as it is."""
    if not config.has_begun_training:
        prepare(plan or plan_data(config), config.cohort, config.workers, on_progress=progress)
    cohort = open_cohort(config.cohort)
    _check_score(config, cohort.modalities)
    return cohort


def plan_data(config: FitConfig) -> Plan:
    data = config.data
    plan = plan_cohort(
        data.layout,
        data.source,
        size=data.size,
        modalities=data.modalities,
        labels=data.labels,
        split=data.split,
        seed=config.seed,
    )
    raw = RawOptions(data.raw)
    plan = replace(plan, raw=raw, keep_isolated=data.keep_isolated, fill_labels_mm=data.fill_labels_mm)
    if data.split is None:
        plan = replace(plan, split=draw_split(plan, config.seed), split_from=f"fit, seed {config.seed}")
    _check_score(config, plan.modalities)
    check_kinds(plan)
    return plan


def _check_score(config: FitConfig, modalities: Sequence[str]) -> None:
    if unknown := [name for name in config.score if name not in modalities]:
        raise ConfigError(f"--score {','.join(unknown)}: not among the modalities {', '.join(modalities)}")


def check_labels(cohort: Cohort) -> None:
    """Everything that calibration and distillation will need, before hours of training."""
    training_rows(cohort, Task.GUIDED)
    labels = cohort.assumed_labels[cohort.rows(Split.VAL)]
    counts = [int((labels == label).sum()) for label in (HEALTHY, UNHEALTHY)]
    if not all(counts):
        raise CohortError(
            f"{cohort.path}: its validation patients have {counts[0]} healthy and {counts[1]} unhealthy slices, and "
            "both kinds are needed; label slices of more patients, or choose validation patients with --split"
        )


# ---- train -----------------------------------------------------------------------------------------------------------


def is_trained(config: FitConfig) -> bool:
    if not (config.out / STATE).is_file():
        return False
    step, budget = trained_step(config), config.budget
    minutes = budget.minutes
    enough = step >= (budget.steps or 0) if minutes is None else load_record(config).trained_for >= minutes
    return enough and holds_model(config.out, step)


def trained_step(config: FitConfig) -> int:
    return int(load_state(config.out)[1]["step"]) if (config.out / STATE).is_file() else 0


def train_model(
    config: FitConfig, cohort: Cohort, estimate: Estimate, device: torch.device, progress: Progress
) -> None:
    limited = config.budget.minutes is not None
    limits = TrainingLimits(config.budget.steps, max(estimate.training / 60, SHORTEST) if limited else None)
    progress("Training", 0.0, 1.0)
    run_training.train(_trainer(config, cohort, device), cohort, config.out, limits, progress)
    if limited:
        left = max(estimate.student / 60, SHORTEST)
        change_record(config, trained_for=config.budget.minutes, student_minutes=left)


def _trainer(config: FitConfig, cohort: Cohort, device: torch.device) -> Trainer:
    if (config.out / STATE).is_file():
        return run_training.resume(config.out, cohort, device=device, world=World())
    training = TrainingConfig(seed=config.seed, learning_rate=LEARNING_RATE)
    return run_training.start(
        cohort, preset(config.preset, len(cohort.modalities)), training, device=device, world=World()
    )


# ---- calibrate and distil --------------------------------------------------------------------------------------------


def load_finished_calibration(config: FitConfig, model: TrainedModel) -> Calibration | None:
    """None if there is none for these weights and scored modalities."""
    try:
        calibration, _ = load_calibration(model)
    except CalibrationError:
        return None
    return calibration if calibration.settings.channels == model.channels(config.score) else None


def calibrate_model(config: FitConfig, model: TrainedModel, cohort: Cohort, progress: Progress) -> Calibration:
    settings = CalibrationConfig(score=config.score, seed=config.seed, batch=batch_for(model.device))
    with folder_lock(config.out):
        fitted = fit_calibration(model, cohort, settings, progress)
        save_calibration(fitted.calibration, draw_calibration(fitted), config.out)
    return fitted.calibration


def load_finished_student(model: TrainedModel, calibration: Calibration) -> Student | None:
    """None if there is none of these weights and this calibration."""
    try:
        student = load_student(model.folder, model.sha256, model.device)
        payload = load_model(model.folder / FOLDER)[1] if student else {}
    except ModelError:
        return None
    same = payload.get("distillation", {}).get("calibration") == fingerprint(asdict(calibration))
    return student if same else None


def distill_model(
    config: FitConfig, model: TrainedModel, calibration: Calibration, cohort: Cohort, progress: Progress
) -> Student:
    training = StudentTrainingConfig(config.budget.student_steps, student_minutes(config), seed=config.seed)
    student = distill(model, calibration, cohort, DistillConfig(training), World(), progress)
    assert student is not None  # this is the main process
    return student
