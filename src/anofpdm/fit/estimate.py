"""How long a fit takes: a few timed steps of each stage on the device, times their number."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anofpdm.calibration.fit_calibration import LEVELS, CalibrationConfig
from anofpdm.choices import Split
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError
from anofpdm.fit.fit_config import DEFAULT_STEPS, STUDENT_SHARE, Budget, FitConfig
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.gather import batch_for
from anofpdm.network.config import preset
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.training.augment import CHANCES
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.student.student_batches import StudentBatch
from anofpdm.student.student_network import StudentConfig, StudentNet
from anofpdm.student.train_student import StudentTrainer, StudentTrainingConfig

CALLS, CALLS_ON_GPU = 2, 8  # of a measurement; a GPU records its kernels in the first ones
LONG_CALL, VERY_LONG_CALL = 0.25, 4.0  # seconds
MARGIN = 1.25  # of the estimated time of evaluations: reading and writing come on top
FEWEST_STEPS = 100  # of training; a useful model takes thousands
LONG_REST = 300  # seconds
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
    labelling: float
    student: float

    def describe(self, budget: Budget, device: torch.device) -> list[str]:
        stages = {"training": self.training, "calibration": self.calibration, "student": self.labelling + self.student}
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
    """--minutes are shared by all stages: training gets what the others leave. Raises if that is too little, or if long
    stages would follow a training of a few --steps."""
    calibration = min(work.calibrated, CalibrationConfig.most) * LEVELS * speed.evaluation
    labelling = work.pseudo_labelled * LEVELS * speed.evaluation
    student = budget.student_steps * speed.student_step
    others = 60 * done.other_stages + MARGIN * (calibration + labelling)
    if budget.minutes is None:
        steps = max(0, (budget.steps or 0) - done.steps)
        training, rest = steps * speed.training_step, calibration + labelling + student
        enough = rest <= max(LONG_REST, 10 * training)
        problem = f"--steps {budget.steps}: {describe_seconds(rest)} of calibration and student would follow"
    else:
        shared = max(0.0, 60 * budget.minutes - others)  # by training and student
        student = min(student, STUDENT_SHARE * shared)
        training, enough = max(0.0, shared - student - 60 * done.training), False
        steps = int(training / speed.training_step)
        problem = f"--minutes {budget.minutes:g}: {steps} training steps fit into it beside calibration and student"
    fewest = FEWEST_STEPS - done.steps
    if steps < fewest and not enough:
        needed = others + (60 * done.training + fewest * speed.training_step) / (1 - STUDENT_SHARE)
        raise ConfigError(  # a tenth more, as measured speeds vary
            f"{problem}; give --minutes {math.ceil(1.1 * needed / 60)} or more, which is {FEWEST_STEPS} steps, or make "
            "both faster (a GPU, or --preset tiny --size 64)"
        )
    return Estimate(steps, training, calibration, labelling, student)


def describe_seconds(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} hours"


# ---- the measurement -------------------------------------------------------------------------------------------------


def measure_speed(config: FitConfig, channels: int, device: torch.device) -> Speed:
    """Trains and evaluates throw-away networks for a few seconds."""
    network, size = preset(config.preset, channels), config.data.size
    student = StudentConfig(config.score or tuple(map(str, range(channels))), size, NEIGHBOURS_MM)

    def training(batch: int) -> Callable[[], object]:
        trainer = Trainer(network, TrainingConfig(batch=batch), device)
        slices, labels = torch.zeros(batch, channels, size, size), torch.zeros(batch, dtype=torch.long)
        return lambda: trainer.update(trainer.inputs(slices, labels))

    def evaluation(batch: int) -> Callable[[], object]:
        predict = NoisePredictor(UNet(network), device)
        x = torch.zeros(2 * batch, channels, size, size, device=device)  # each slice with two labels
        labels = torch.zeros(2 * batch, dtype=torch.long, device=device)
        return lambda: predict(x, 300, labels)

    def student_training(batch: int) -> Callable[[], object]:
        trainer = StudentTrainer(StudentNet(student), StudentTrainingConfig(), device)
        tensors = StudentBatch(
            torch.zeros(batch, student.in_channels, size, size, device=device),
            torch.zeros(batch, size, size, dtype=torch.uint8, device=device),
            torch.zeros(batch, dtype=torch.long, device=device),
            torch.zeros(batch, CHANCES + student.in_channels + 1, device=device),
            torch.zeros(batch, dtype=torch.bool, device=device),
            torch.zeros(batch, student.in_channels, dtype=torch.bool, device=device),
        )
        return lambda: trainer.update(tensors)

    batch, student_batch = TrainingConfig.batch, StudentTrainingConfig.batch
    speed = Speed(
        batch * _seconds_per_slice(training, batch, device),
        _seconds_per_slice(evaluation, batch_for(device), device),
        student_batch * _seconds_per_slice(student_training, student_batch, device),
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return speed


def _seconds_per_slice(make: Callable[[int], Callable[[], object]], batch: int, device: torch.device) -> float:
    """In a batch; on a CPU, in a smaller one that takes long enough: the time is then proportional to the batch."""
    size = 1 if device.type == "cpu" else batch
    while (seconds := _seconds(make(size), device)) < LONG_CALL and size < batch:
        size = min(4 * size, batch)
    return seconds / size


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Shortest time of some calls: other programs make calls longer, never shorter. Of a very long call, one."""
    times: list[float] = []
    while len(times) < (CALLS_ON_GPU if device.type == "cuda" else CALLS) and max(times, default=0.0) < VERY_LONG_CALL:
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times)
