"""How long a fit takes, from a short measurement on the device."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anofpdm.calibration.fit_calibration import LEVELS, CalibrationConfig
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError
from anofpdm.fit.fit_config import STUDENT_SHARE, Budget, FitConfig
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.gather import batch_for
from anofpdm.network.classifier import build_network
from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.training.augment import CHANCES
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.options import Split, Task
from anofpdm.student.student_batches import StudentBatch
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.student.train_student import StudentTrainer, StudentTrainingConfig

SECONDS, REPEATS = 1.0, 20  # of a measurement, whichever ends first
WARM_UP = 5  # a GPU records its kernels in these
MARGIN = 1.25  # of the estimated time of evaluations: reading and writing come on top
FEWEST_STEPS = 100  # of training; a useful model takes thousands
LONG_REST = 300  # seconds
NEIGHBOURS_MM = (-2.0, 2.0)  # of the student whose speed is measured
SMALLEST_BATCH, LONG_CALL, VERY_LONG_CALL = 1, 0.25, 4.0  # slices; seconds

Call = Callable[[], object]


@dataclass(frozen=True)
class Speed:
    """Seconds on this device."""

    training_step: float
    evaluation: float  # of the network, on a slice with two labels
    student_step: float


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
    """Training steps so far, and minutes spent, over all runs."""

    steps: int = 0
    training: float = 0.0
    other: float = 0.0  # stages


@dataclass(frozen=True)
class Estimate:
    """Seconds of each stage."""

    steps: int  # of training, from now on
    training: float
    calibration: float
    labelling: float  # pseudo-labels
    student: float

    @property
    def after_training(self) -> float:
        return self.calibration + self.labelling + self.student

    @property
    def total(self) -> float:
        return self.training + self.after_training


def estimate_time(budget: Budget, work: Work, speed: Speed, done: Done) -> Estimate:
    """Of what is left after preparing. --minutes are shared by all stages: training gets what the others leave."""
    per_slice = LEVELS * speed.evaluation
    calibration, labelling = min(work.calibrated, CalibrationConfig.most) * per_slice, work.pseudo_labelled * per_slice
    student = budget.student_steps * speed.student_step
    if budget.minutes is None:
        steps = max(0, (budget.steps or 0) - done.steps)
        return Estimate(steps, steps * speed.training_step, calibration, labelling, student)
    shared = max(0.0, 60 * (budget.minutes - done.other) - MARGIN * (calibration + labelling))
    student = min(student, STUDENT_SHARE * shared)
    training = max(0.0, shared - student - 60 * done.training)
    return Estimate(int(training / speed.training_step), training, calibration, labelling, student)


def check_enough(budget: Budget, estimate: Estimate, speed: Speed, done: Done) -> None:
    """Refuse to calibrate for long what was hardly trained."""
    if done.steps + estimate.steps >= FEWEST_STEPS:
        return
    training = max(0, FEWEST_STEPS - done.steps) * speed.training_step
    evaluation = MARGIN * (estimate.calibration + estimate.labelling)
    shared = (60 * done.training + training) / (1 - STUDENT_SHARE)
    needed = math.ceil(1.1 * (done.other + (evaluation + shared) / 60))  # measured speeds vary
    if budget.minutes is not None:
        have = f"{estimate.steps} training steps fit into it beside calibration and student"
    elif estimate.after_training > max(LONG_REST, 10 * estimate.training):
        have = (
            f"{describe_seconds(estimate.training)} of training, and then {describe_seconds(estimate.after_training)}"
        )
        have += " of calibration and student"
    else:
        return
    raise ConfigError(
        f"{budget}: {have}; give --minutes {needed} or more, which is {FEWEST_STEPS} steps, or make both faster (a "
        "GPU, or --preset tiny --size 64)"
    )


def measure_speed(config: FitConfig, channels: int, device: torch.device) -> Speed:
    """Trains and evaluates throw-away networks for a few seconds."""
    network, batch, size = preset(config.preset, channels), TrainingConfig.batch, config.data.size
    per_slice = _seconds_per_slice(lambda count: _training_step(network, size, count, device), batch, device)
    evaluated = _seconds_per_slice(lambda count: _evaluation(network, size, count, device), batch_for(device), device)
    student, student_batch = _student_config(config, channels), StudentTrainingConfig.batch
    trained = _seconds_per_slice(lambda count: _student_step(student, count, device), student_batch, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Speed(per_slice * batch, evaluated, trained * student_batch)


def _training_step(network: UNetConfig, size: int, batch: int, device: torch.device) -> Call:
    trainer = Trainer(build_network(Task.GUIDED, network), TrainingConfig(batch=batch), device)
    slices = torch.zeros(batch, network.in_channels, size, size, dtype=torch.float16)
    labels = torch.zeros(batch, dtype=torch.long)
    return lambda: trainer.update(trainer.inputs(slices, labels))


def _evaluation(network: UNetConfig, size: int, batch: int, device: torch.device) -> Call:
    predict = NoisePredictor(UNet(network), device)
    x = torch.zeros(batch, network.in_channels, size, size, device=device)
    return lambda: predict.predict_pair(x, 300, (HEALTHY, NULL))


def _student_config(config: FitConfig, channels: int) -> StudentConfig:
    return StudentConfig(config.score or tuple(map(str, range(channels))), config.data.size, NEIGHBOURS_MM)


def _student_step(network: StudentConfig, batch: int, device: torch.device) -> Call:
    trainer, size = StudentTrainer(StudentNet(network), StudentTrainingConfig(), device), network.size
    tensors = StudentBatch(
        torch.zeros(batch, network.in_channels, size, size, device=device),
        torch.zeros(batch, size, size, dtype=torch.uint8, device=device),
        torch.zeros(batch, dtype=torch.long, device=device),
        torch.zeros(batch, CHANCES + network.in_channels + 1, device=device),
        torch.zeros(batch, dtype=torch.bool, device=device),
        torch.zeros(batch, network.in_channels, dtype=torch.bool, device=device),
    )
    return lambda: trainer.update(tensors)


def _seconds_per_slice(make: Callable[[int], Call], batch: int, device: torch.device) -> float:
    """At this batch size. On a CPU at a smaller one if a call takes long: its time is proportional to the batch."""
    if device.type != "cpu":
        return _seconds(make(batch), device) / batch
    size = min(SMALLEST_BATCH, batch)
    seconds = _seconds(make(size), device)
    while size < batch and seconds < LONG_CALL:
        size = min(4 * size, batch)
        seconds = _seconds(make(size), device)
    return seconds / size


def _seconds(call: Call, device: torch.device) -> float:
    """Shortest time of some calls, at least two, after a warm-up: other programs make calls longer, never shorter. A
    very long first call is not repeated."""
    for _ in range(WARM_UP if device.type == "cuda" else 1):
        first = _time(call, device)
        if first > VERY_LONG_CALL:
            return first
    times = [first] if first > SECONDS else []
    while len(times) < 2 or (len(times) < REPEATS and sum(times) < SECONDS):
        times.append(_time(call, device))
    return min(times)


def _time(call: Call, device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def describe_seconds(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} hours" if minutes < 600 else f"{minutes / 60:.0f} hours"
