"""A fit from scans and labels to a model and its page. Each stage is skipped when its result is complete, and resumes
as its own command does."""

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import torch

from anofpdm.calibration.calibration_file import load_calibration, save_calibration
from anofpdm.calibration.figure import draw_calibration
from anofpdm.calibration.fit_calibration import CalibrationConfig, fit_calibration
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.store import Cohort, open_cohort
from anofpdm.cohorts.writer import MANIFEST
from anofpdm.errors import CalibrationError, CohortError, ModelError, TrainingError
from anofpdm.fit.data_plan import check_labels, check_score, plan_data
from anofpdm.fit.estimate import Estimate, count_evaluated, estimate_time, measure_step
from anofpdm.fit.fit_config import LEARNING_RATE, PAGE, FitConfig
from anofpdm.fit.fit_page import FitResult, render_page
from anofpdm.fit.preview import preview
from anofpdm.fit.record import change_record, check_settings, count_minutes, load_record, record_settings
from anofpdm.method.calibration import Calibration
from anofpdm.method.gather import batch_for
from anofpdm.network.checkpoint import STATE, holds_model, load_model, load_state
from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.network.training import run_training
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig, TrainingLimits
from anofpdm.student.distillation import DistillConfig, distill
from anofpdm.student.student import FOLDER, Student, load_student
from anofpdm.student.targets import fingerprint
from anofpdm.student.train_student import StudentTrainingConfig
from anofpdm.util.files import folder_lock, write_atomically
from anofpdm.util.progress import Progress, silent

SHORTEST = 1e-3  # minutes


@dataclass(frozen=True)
class Fit:
    config: FitConfig
    device: torch.device
    note: Callable[[str], None]  # receives lines of text
    progress: Progress = silent

    def run(self) -> FitResult:
        config = self.config
        check_settings(config)
        cohort = self._open_cohort() if config.has_begun_training else self._prepare()
        self._train(cohort)
        model = load_trained(config.out, self.device)
        calibration = self._calibrate(model, cohort)
        student, why_none = self._distil(model, calibration, cohort)
        result = FitResult(cohort, model, calibration, student, why_none)
        write_atomically(config.out / PAGE, render_page(config, result).encode(errors="replace"))
        self.note(f"5/5 page: {config.out / PAGE}")
        return result

    def preview(self) -> bool:
        """Check labels, files and split, and estimate the time, without writing anything. Returns whether all scans
        can be used."""
        check_settings(self.config)
        seen = preview(plan_data(self.config))
        self._note_all(seen.describe())
        estimate = self._estimate(seen.evaluated, len(seen.plan.modalities))
        self._note_all(estimate.describe(self.config, self.device))
        self.note("note: preparing the scans takes time in addition; nothing was written")
        return not seen.failed

    def is_trained(self) -> bool:
        step, minutes = self._trained_step(), self.config.minutes
        complete = step >= self.config.steps if minutes is None else load_record(self.config).trained_for >= minutes
        return complete and holds_model(self.config.out, step)

    def _trained_step(self) -> int:
        out = self.config.out
        return int(load_state(out)[1]["step"]) if (out / STATE).is_file() else 0

    def _note_all(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.note(line)

    def _estimate(self, evaluated: int, channels: int) -> Estimate:
        """Raises if the time is too short."""
        step_seconds, spent = measure_step(self.config, channels, self.device), load_record(self.config).minutes
        return estimate_time(self.config, evaluated, step_seconds, self._trained_step(), spent)

    # ---- stages ------------------------------------------------------------------------------------------------------

    def _prepare(self) -> Cohort:
        config = self.config
        plan = plan_data(config)
        self._estimate(preview(plan).evaluated, len(plan.modalities))
        before = set(config.out.iterdir()) if config.out.is_dir() else None
        record_settings(config)
        try:
            with count_minutes(config):
                prepare(plan, config.cohort, config.workers, on_progress=self._until_out_of_time())
        except CohortError:
            if not (config.cohort / MANIFEST).is_file():  # a failed start leaves nothing behind
                for path in [config.out] if before is None else set(config.out.iterdir()) - before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise
        return self._open_cohort()

    def _until_out_of_time(self) -> Progress:
        """Stops preparing when all of --minutes is used up."""
        minutes, start, before = self.config.minutes, time.monotonic(), load_record(self.config).minutes

        def update(task: str, done: float, total: float, note: str = "") -> None:
            self.progress(task, done, total, note)
            spent = before + (time.monotonic() - start) / 60
            if minutes is not None and spent > minutes and done < total:
                raise TrainingError(
                    f"--minutes {minutes:g}: used up by preparing {done:g} of {total:g} scans; re-run with more"
                )

        return update

    def _open_cohort(self) -> Cohort:
        """Once training has begun, the cohort stays as it is."""
        cohort = open_cohort(self.config.cohort)
        check_score(self.config, cohort.modalities)
        modalities = ", ".join(cohort.modalities)
        self.note(f"1/5 prepare: {cohort.manifest.scans} scans, {len(cohort)} slices of {modalities} in {cohort.path}")
        failed = cohort.manifest.failed.items()
        self._note_all([*cohort.notes, *(f"failed: {scan}: {reason}" for scan, reason in failed)])
        check_labels(cohort)  # the notes may explain why there are too few
        return cohort

    def _train(self, cohort: Cohort) -> None:
        config = self.config
        if self.is_trained():
            self.note(f"2/5 train: complete, {self._trained_step()} steps")
            return
        estimate = self._estimate(count_evaluated(cohort), len(cohort.modalities))
        self._note_all(estimate.describe(config, self.device))
        if config.minutes is None:
            limits = TrainingLimits(steps=config.steps)
        else:
            limits = TrainingLimits(minutes=max(estimate.training / 60, SHORTEST))
        self.progress("Training", 0.0, 1.0)
        with count_minutes(config):
            run_training.train(self._trainer(cohort), cohort, config.out, limits, self.progress)
        if config.minutes is not None:
            left = max(estimate.student / 60, SHORTEST)
            change_record(config, trained_for=config.minutes, student_minutes=left)
        self.note(f"2/5 train: {self._trained_step()} steps")

    def _trainer(self, cohort: Cohort) -> Trainer:
        if (self.config.out / STATE).is_file():
            return run_training.resume(self.config.out, cohort, self._new_trainer)
        training = TrainingConfig(seed=self.config.seed, learning_rate=LEARNING_RATE)
        network = preset(self.config.preset, len(cohort.modalities))
        return run_training.start(cohort, network, training, self._new_trainer)

    def _new_trainer(self, network: UNetConfig, training: TrainingConfig) -> Trainer:
        return Trainer(network, training, self.device)

    def _calibrate(self, model: TrainedModel, cohort: Cohort) -> Calibration:
        config = self.config
        calibration, state = _finished_calibration(config, model), "complete, "
        if calibration is None:
            settings = CalibrationConfig(score=config.score, seed=config.seed, batch=batch_for(self.device))
            state = ""
            try:
                with count_minutes(config), folder_lock(config.out):
                    calibration, gathered = fit_calibration(model, cohort, settings, self.progress)
                    save_calibration(calibration, draw_calibration(calibration, gathered), config.out)
            except CalibrationError as problem:
                raise CalibrationError(f"{problem} (re-run `anofpdm fit` with more --steps or --minutes)") from None
        auc = calibration.with_context(calibration.context_mm).curve_accuracy.auc
        self.note(f"3/5 calibrate: {state}guidance strength {calibration.strength:g}, detector AUC {auc:.3f}")
        return calibration

    def _distil(self, model: TrainedModel, calibration: Calibration, cohort: Cohort) -> tuple[Student | None, str]:
        """The student, or why there is none."""
        config = self.config
        student, state, why_none = _finished_student(model, calibration), "complete, ", ""
        if student is None:
            state, minutes = "", load_record(config).student_minutes
            training = StudentTrainingConfig(config.student_steps, minutes, seed=config.seed)
            try:
                with count_minutes(config):
                    student = distill(model, calibration, cohort, DistillConfig(training), progress=self.progress)
            except TrainingError as problem:
                why_none = str(problem)
        rating = f"student AUC {student.calibration.auc:.3f}" if student else f"no student; {why_none}"
        self.note(f"4/5 distil: {state}{rating}")
        return student, why_none


def _finished_calibration(config: FitConfig, model: TrainedModel) -> Calibration | None:
    """None if there is none for these weights and scored modalities."""
    try:
        calibration, _ = load_calibration(model)
    except CalibrationError:
        return None
    return calibration if calibration.settings.channels == model.channels(config.score) else None


def _finished_student(model: TrainedModel, calibration: Calibration) -> Student | None:
    """None if there is none of these weights and this calibration."""
    try:
        student = load_student(model.folder, model.sha256, model.device)
        payload = load_model(model.folder / FOLDER)[1] if student else {}
    except ModelError:
        return None
    same = payload.get("distillation", {}).get("calibration") == fingerprint(asdict(calibration))
    return student if same else None
