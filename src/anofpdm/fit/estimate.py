"""How long a fit takes: a few timed steps of each stage on the device, times their number."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anofpdm.calibration.fit_calibration import LEVELS, CalibrationConfig
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError
from anofpdm.fit.fit_config import DEFAULT_STEPS, STUDENT_SHARE, Budget, FitConfig
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.evidence import BATCH
from anofpdm.network.config import preset
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.training.augment import CHANCES
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.options import Split
from anofpdm.student.student_batches import StudentBatch
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.student.train_student import StudentTrainer, StudentTrainingConfig

CALLS, CALLS_ON_GPU = 2, 8  # of a measurement; a GPU records its kernels in the first ones
MARGIN = 1.25  # of the estimated time of evaluations: reading and writing come on top
FEWEST_STEPS = 100  # of training; a useful model takes thousands
NEIGHBOURS_MM = (-2.0, 2.0)  # of the student whose speed is measured


@dataclass(frozen=True)
class Work:
    """Slices that the network evaluates after training."""

    calibrated: int
    pseudo_labelled: int

    @classmethod
    def of(cls, cohort: Cohort) -> "Work":
        val, train = cohort.rows(Split.VAL), cohort.rows(Split.TRAIN)
        calibrated = int((cohort.assumed_labels[val] != NULL).sum())
        return cls(calibrated, int((cohort.labels[train] != HEALTHY).sum()))  # pseudo-labels of the others are empty


@dataclass(frozen=True)
class Done:
    """By all runs so far."""

    steps: int = 0  # of training
    training: float = 0.0  # minutes, as the next
    other_stages: float = 0.0


@dataclass(frozen=True)
class Speed:
    """Seconds on this device."""

    training_step: float
    evaluation: float  # of the network, on a slice with two labels
    student_step: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of what is left after preparing."""

    steps: int  # of training
    training: float
    calibration: float
    student: float  # with its pseudo-labels

    def describe(self, budget: Budget, device: torch.device) -> list[str]:
        stages = {"training": self.training, "calibration": self.calibration, "student": self.student}
        parts = ", ".join(f"{name} {describe_seconds(seconds)}" for name, seconds in stages.items())
        lines = [f"estimated time: {describe_seconds(sum(stages.values()))} ({parts}) on {device}"]
        if device.type == "cpu":
            lines.append(
                f"warning: no GPU is used. {self.steps:,} training steps take {self.training / 3600:.2g} hours on "
                "this CPU. Use a machine with a GPU, or a smaller network and slices (--preset tiny --size 64)"
            )
        if budget.minutes is not None and self.steps < DEFAULT_STEPS / 2:
            lines.append(
                f"note: about {self.steps} steps fit into the time; a useful model took 3,500 to 10,000 on real scans"
            )
        return lines


def estimate_time(budget: Budget, work: Work, speed: Speed, done: Done) -> Estimate:
    """--minutes are shared by all stages: training gets what the others leave. Raises if that is too little."""
    calibration = min(work.calibrated, CalibrationConfig.most) * LEVELS * speed.evaluation
    labelling = work.pseudo_labelled * LEVELS * speed.evaluation
    student = budget.student_steps * speed.student_step
    if budget.minutes is None:
        steps = max(0, (budget.steps or 0) - done.steps)
        return Estimate(steps, steps * speed.training_step, calibration, labelling + student)
    others = 60 * done.other_stages + MARGIN * (calibration + labelling)
    shared = max(0.0, 60 * budget.minutes - others)  # by training and student
    student = min(student, STUDENT_SHARE * shared)
    training = max(0.0, shared - student - 60 * done.training)
    steps, fewest = int(training / speed.training_step), FEWEST_STEPS - done.steps
    if steps < fewest:
        needed = others + (60 * done.training + fewest * speed.training_step) / (1 - STUDENT_SHARE)
        raise ConfigError(  # a tenth more, as measured speeds vary
            f"--minutes {budget.minutes:g}: {steps} training steps fit into it beside calibration and student; give "
            f"--minutes {math.ceil(1.1 * needed / 60)} or more, which is {FEWEST_STEPS} steps, or make both faster "
            "(a GPU, or --preset tiny --size 64)"
        )
    return Estimate(steps, training, calibration, labelling + student)


def describe_seconds(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} hours"


# ---- the measurement -------------------------------------------------------------------------------------------------


def measure_speed(config: FitConfig, channels: int, device: torch.device) -> Speed:
    """Trains and evaluates throw-away networks for a few seconds: whole batches on a GPU, and single slices on a CPU,
    where the time is proportional to their number."""
    network, size, on_cpu = preset(config.preset, channels), config.data.size, device.type == "cpu"
    training, student_training = TrainingConfig(), StudentTrainingConfig()

    batch = 1 if on_cpu else training.batch
    trainer = Trainer(network, TrainingConfig(batch=batch), device)
    slices, labels = torch.zeros(batch, channels, size, size), torch.zeros(batch, dtype=torch.long)
    step = _seconds(lambda: trainer.update(trainer.inputs(slices, labels)), device) / batch

    batch = 1 if on_cpu else BATCH
    predict, x = NoisePredictor(UNet(network), device), torch.zeros(2 * batch, channels, size, size, device=device)
    labels = torch.zeros(2 * batch, dtype=torch.long, device=device)  # each slice with two labels
    evaluation = _seconds(lambda: predict(x, 300, labels), device) / batch

    batch = 1 if on_cpu else student_training.batch
    student = StudentConfig(config.score or tuple(map(str, range(channels))), size, NEIGHBOURS_MM)
    student_trainer = StudentTrainer(StudentNet(student), student_training, device)
    student_batch = StudentBatch(
        torch.zeros(batch, student.in_channels, size, size, device=device),
        torch.zeros(batch, size, size, dtype=torch.uint8, device=device),
        torch.zeros(batch, dtype=torch.long, device=device),
        torch.zeros(batch, CHANCES + student.in_channels + 1, device=device),
        torch.zeros(batch, dtype=torch.bool, device=device),
        torch.zeros(batch, student.in_channels, dtype=torch.bool, device=device),
    )
    student_step = _seconds(lambda: student_trainer.update(student_batch), device) / batch
    if not on_cpu:
        torch.cuda.empty_cache()
    return Speed(training.batch * step, evaluation, student_training.batch * student_step)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Shortest time of some calls: other programs make calls longer, never shorter."""
    times = []
    for _ in range(CALLS_ON_GPU if device.type == "cuda" else CALLS):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)
