"""How long a fit takes, from the measured time of a training step."""

import math
import time
from dataclasses import dataclass

import torch

from anofpdm.calibration.fit_calibration import LEVELS, CalibrationConfig
from anofpdm.choices import Split
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError
from anofpdm.fit.fit_config import DEFAULT_STEPS, STUDENT_SHARE, FitConfig
from anofpdm.labels import HEALTHY, NULL
from anofpdm.network.config import preset
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig

CALLS = 6  # of a measurement; a GPU records its kernels in the first ones
LONG_CALL, LONG_MEASUREMENT = 0.25, 4.0  # seconds
# Times relative to training, whatever the network and the device, with a margin of a quarter: on a CPU and an H200, a
# slice takes half as long to evaluate with two labels as to train on, and a step of the student a fifth of a step.
EVALUATION, STUDENT_STEP = 0.625, 0.25
FEWEST_STEPS = 100  # of training; a useful model takes thousands


@dataclass(frozen=True)
class Estimate:
    """Seconds of what is left after preparing."""

    steps: int  # of training
    training: float
    evaluations: float  # in calibration and for pseudo-labels
    student: float

    def describe(self, config: FitConfig, device: torch.device) -> list[str]:
        training, evaluations, student = map(describe_seconds, (self.training, self.evaluations, self.student))
        total = describe_seconds(self.training + self.evaluations + self.student)
        lines = [
            f"estimated time: {total} (training {training}, calibration and pseudo-labels {evaluations}, "
            f"student {student}) on {device}"
        ]
        if device.type == "cpu":
            lines.append(
                f"warning: no GPU is used. {self.steps:,} training steps take {self.training / 3600:.2g} hours on "
                "this CPU. Use a machine with a GPU, or a smaller network and slices (--preset tiny --size 64)"
            )
        if config.minutes is not None and self.steps < DEFAULT_STEPS / 2:
            lines.append(
                f"note: about {self.steps} steps fit into the time; a useful model took 3,500 to 10,000 on real scans"
            )
        return lines


def count_evaluated(cohort: Cohort) -> int:
    """Slices that the network evaluates after training."""
    labelled = cohort.assumed_labels[cohort.rows(Split.VAL)] != NULL
    pseudo_labelled = cohort.labels[cohort.rows(Split.TRAIN)] != HEALTHY  # pseudo-labels of the others are empty
    return min(int(labelled.sum()), CalibrationConfig.most) + int(pseudo_labelled.sum())


def estimate_time(
    config: FitConfig,
    evaluated: int,  # slices
    step_seconds: float,  # of training
    steps_done: int = 0,  # by all runs so far
    minutes_spent: float = 0.0,  # on all stages, likewise
) -> Estimate:
    """--minutes are shared by all stages: training gets what the others leave. Raises if that is too little."""
    evaluations = evaluated * LEVELS * EVALUATION * step_seconds / TrainingConfig.batch
    student = config.student_steps * STUDENT_STEP * step_seconds
    if config.minutes is None:
        steps = max(0, config.steps - steps_done)
        return Estimate(steps, steps * step_seconds, evaluations, student)
    others = 60 * minutes_spent + evaluations
    shared = max(0.0, 60 * config.minutes - others)  # by training and student
    student = min(student, STUDENT_SHARE * shared)
    steps, fewest = int((shared - student) / step_seconds), FEWEST_STEPS - steps_done
    if steps < fewest:
        needed = others + fewest * step_seconds / (1 - STUDENT_SHARE)
        raise ConfigError(  # a tenth more, as the measured time varies
            f"--minutes {config.minutes:g}: {steps} training steps fit into it beside calibration and student; "
            f"give --minutes {math.ceil(1.1 * needed / 60)} or more, which is {FEWEST_STEPS} steps, or make "
            "both faster (a GPU, or --preset tiny --size 64)"
        )
    return Estimate(steps, shared - student, evaluations, student)


def describe_seconds(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} hours"


def measure_step(config: FitConfig, channels: int, device: torch.device) -> float:
    """Seconds of a training step; on a CPU, of a smaller batch that takes long enough to be proportional."""
    size = 1 if device.type == "cpu" else TrainingConfig.batch
    while (seconds := _time_step(config, channels, size, device)) < LONG_CALL and size < TrainingConfig.batch:
        size = min(4 * size, TrainingConfig.batch)
    torch.cuda.empty_cache()
    return seconds * TrainingConfig.batch / size


def _time_step(config: FitConfig, channels: int, batch: int, device: torch.device) -> float:
    """Shortest time of some steps of a throw-away network: other programs make them longer, never shorter."""
    trainer = Trainer(preset(config.preset, channels), TrainingConfig(batch=batch), device)
    slices, labels = torch.zeros(batch, channels, config.size, config.size), torch.zeros(batch, dtype=torch.long)
    times: list[float] = []
    while len(times) < 2 or (len(times) < CALLS and sum(times) < LONG_MEASUREMENT):
        start = time.perf_counter()
        float(trainer.update(trainer.inputs(slices, labels)))  # waits for the device
        times.append(time.perf_counter() - start)
    return min(times)
