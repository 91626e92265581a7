"""How long a fit takes, from a short measurement on the device."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from anofpdm.calibration.fit import LEVELS, CalibrationConfig, slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.fit.config import FitConfig
from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.gather import batch_for
from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.predictor import NoisePredictor
from anofpdm.network.training import run
from anofpdm.network.training.augment import CHANCES
from anofpdm.network.training.config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.student.batches import StudentBatch
from anofpdm.student.network import StudentConfig, StudentNet, default_neighbours_mm
from anofpdm.student.training import StudentTrainer, StudentTrainingConfig
from anofpdm.util.distributed import World

SECONDS, REPEATS = 1.0, 20  # of a measurement, whichever ends first
WARM_UP = 5  # a GPU records its kernels in these
SMALLEST_BATCH, LONG_CALL = 1, 0.25  # slices; seconds

Call = Callable[[], object]


@dataclass(frozen=True)
class Speed:
    """Seconds on this device."""

    training_step: float
    evaluation: float  # of the network, on a slice with two labels
    student_step: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of each stage."""

    steps: int  # of training, from now on
    training: float
    calibration: float
    distillation: float

    @property
    def total(self) -> float:
        return self.training + self.calibration + self.distillation


def estimate_time(config: FitConfig, cohort: Cohort, speed: Speed, step: int, minutes: float) -> Estimate:
    """Of what is left after `step` training steps, which took `minutes`."""
    budget = config.budget
    if budget.minutes is not None:
        training = 60 * max(0.0, budget.minutes - minutes)
        steps = int(training / speed.training_step)
    else:
        steps = max(0, (budget.steps or 0) - step)
        training = steps * speed.training_step
    val, train = cohort.rows("val"), cohort.rows("train")
    n_calibrated = min(int((cohort.assumed_labels[val] != NULL).sum()), CalibrationConfig.most)
    n_labelled = int((cohort.labels[train] != HEALTHY).sum())  # pseudo-labels of the others are empty
    student = budget.student_steps * speed.student_step
    if budget.student_minutes is not None:
        student = min(student, 60 * budget.student_minutes)
    per_slice = LEVELS * speed.evaluation
    return Estimate(steps, training, n_calibrated * per_slice, n_labelled * per_slice + student)


def measure_speed(config: FitConfig, cohort: Cohort, device: torch.device) -> Speed:
    """Trains and evaluates throw-away networks for a few seconds."""
    network, batch = preset(config.preset, len(cohort.modalities)), TrainingConfig.batch
    per_slice = _seconds_per_slice(lambda size: _training_step(cohort, network, size, device), batch, device)
    evaluated = _seconds_per_slice(lambda size: _evaluation(cohort, network, size, device), batch_for(device), device)
    student = _student_config(config, cohort)
    trained = _seconds_per_slice(lambda size: _student_step(student, size, device), StudentTrainingConfig.batch, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Speed(per_slice * batch, evaluated, trained * StudentTrainingConfig.batch)


def _training_step(cohort: Cohort, network: UNetConfig, batch: int, device: torch.device) -> Call:
    trainer = run.start(cohort, network, TrainingConfig(batch=batch), device=device, world=World())
    rows = np.resize(cohort.rows("train"), batch)
    slices, labels = torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows])
    return lambda: trainer.update(trainer.inputs(slices, labels))


def _evaluation(cohort: Cohort, network: UNetConfig, batch: int, device: torch.device) -> Call:
    predict = NoisePredictor(UNet(network), device)
    x = torch.from_numpy(cohort.pixels(np.resize(cohort.rows("train"), batch))).to(device)
    return lambda: predict.predict_pair(x, 300, (HEALTHY, NULL))


def _student_config(config: FitConfig, cohort: Cohort) -> StudentConfig:
    neighbours = default_neighbours_mm(slice_positions(cohort, cohort.rows("train")))
    return StudentConfig(config.score or cohort.modalities, cohort.slices.shape[-1], neighbours)


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
    """Shortest time of some calls, at least two, after a warm-up: other programs make calls longer, never shorter."""
    for _ in range(WARM_UP if device.type == "cuda" else 1):
        first = _time(call, device)
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
