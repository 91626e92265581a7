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
from anofpdm.method.gather import batch_for
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

CALLS, SECONDS = 8, 1.0  # of a measurement; a GPU records its kernels in the first calls and needs all of them
LONG_CALL, VERY_LONG_CALL = 0.25, 4.0  # seconds
MARGIN = 1.25  # of the estimated time of evaluations: reading and writing come on top
FEWEST_STEPS = 100  # of training; a useful model takes thousands
LONG_REST = 300  # seconds
NEIGHBOURS_MM = (-2.0, 2.0)  # of the student whose speed is measured


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
class Estimate:
    """Seconds of what is left after preparing. --minutes are shared by all stages: training gets what others leave."""

    budget: Budget
    work: Work
    speed: Speed
    steps_done: int = 0
    minutes_trained: float = 0.0  # over all runs, as the next
    minutes_of_stages: float = 0.0  # other than training

    @property
    def calibration(self) -> float:
        return min(self.work.calibrated, CalibrationConfig.most) * LEVELS * self.speed.evaluation

    @property
    def labelling(self) -> float:
        return self.work.pseudo_labelled * LEVELS * self.speed.evaluation

    @property
    def student(self) -> float:
        seconds = self.budget.student_steps * self.speed.student_step
        return seconds if self.budget.minutes is None else min(seconds, STUDENT_SHARE * self._shared)

    @property
    def training(self) -> float:
        if self.budget.minutes is None:
            return self.steps * self.speed.training_step
        return max(0.0, self._shared - self.student - 60 * self.minutes_trained)

    @property
    def steps(self) -> int:
        """Of training, from now on."""
        if self.budget.minutes is None:
            return max(0, (self.budget.steps or 0) - self.steps_done)
        return int(self.training / self.speed.training_step)

    @property
    def after_training(self) -> float:
        return self.calibration + self.labelling + self.student

    @property
    def _shared(self) -> float:
        """Part of --minutes for training and student."""
        evaluations = MARGIN * (self.calibration + self.labelling)
        return max(0.0, 60 * ((self.budget.minutes or 0) - self.minutes_of_stages) - evaluations)

    def check_enough(self) -> None:
        """Refuse to calibrate for long what was hardly trained."""
        missing = FEWEST_STEPS - self.steps_done
        if self.steps >= missing:
            return
        if self.budget.minutes is not None:
            have = f"{self.steps} training steps fit into it beside calibration and student"
        elif self.after_training > max(LONG_REST, 10 * self.training):
            have = f"{describe_seconds(self.training)} of training, and then {describe_seconds(self.after_training)}"
            have += " of calibration and student"
        else:
            return
        shared = (60 * self.minutes_trained + missing * self.speed.training_step) / (1 - STUDENT_SHARE)
        seconds = 60 * self.minutes_of_stages + MARGIN * (self.calibration + self.labelling) + shared
        raise ConfigError(  # a tenth more, as measured speeds vary
            f"{self.budget}: {have}; give --minutes {math.ceil(1.1 * seconds / 60)} or more, which is {FEWEST_STEPS} "
            "steps, or make both faster (a GPU, or --preset tiny --size 64)"
        )

    def describe(self, device: torch.device) -> list[str]:
        stages = {
            "training": self.training, "calibration": self.calibration, "student": self.labelling + self.student,
        }  # fmt: skip
        parts = ", ".join(f"{name} {describe_seconds(seconds)}" for name, seconds in stages.items())
        total = describe_seconds(self.training + self.after_training)
        rate = 1 / self.speed.training_step
        lines = [f"estimated time: {total} ({parts}); {rate:.3g} training steps per second on {device}"]
        if device.type == "cpu":
            lines.append(
                f"warning: no GPU is used. {self.steps:,} training steps take {self.training / 3600:.2g} hours on "
                "this CPU. Use a machine with a GPU, or a smaller network and slices (--preset tiny --size 64)"
            )
        if self.budget.minutes is not None and self.steps < DEFAULT_STEPS / 2:
            lines.append(
                f"note: about {self.steps} steps fit into the time; a useful model took 3,500 to 10,000 on real scans"
            )
        return lines


def describe_seconds(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes < 90:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.1f} hours" if minutes < 600 else f"{minutes / 60:.0f} hours"


# ---- the measurement -------------------------------------------------------------------------------------------------


def measure_speed(config: FitConfig, channels: int, device: torch.device) -> Speed:
    """Trains and evaluates throw-away networks for a few seconds."""
    network, size = preset(config.preset, channels), config.data.size
    student = StudentConfig(config.score or tuple(map(str, range(channels))), size, NEIGHBOURS_MM)

    def training(batch: int) -> Callable[[], object]:
        trainer = Trainer(network, TrainingConfig(batch=batch), device)
        slices = torch.zeros(batch, channels, size, size, dtype=torch.float16)
        labels = torch.zeros(batch, dtype=torch.long)
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
    """Shortest time of some calls: other programs make calls longer, never shorter."""
    times: list[float] = []
    while len(times) < 2 or (len(times) < CALLS and (device.type == "cuda" or sum(times) < SECONDS)):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
        if times[0] > VERY_LONG_CALL:
            break
    return min(times)
