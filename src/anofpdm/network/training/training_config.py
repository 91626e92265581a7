"""Settings of a training run."""

from dataclasses import dataclass

from anofpdm.choices import Noise, Task, WeightFormat
from anofpdm.errors import ConfigError


@dataclass(frozen=True)
class TrainingConfig:
    task: Task = Task.GUIDED
    seed: int = 0
    batch: int = 64  # over all processes
    learning_rate: float = 1e-4
    warm_up: int = 100  # steps over which the learning rate rises
    average: float = 0.9999  # decay of the weights' moving average, after its first steps
    clip: float = 1.0  # maximum norm of the gradient
    null_share: float = 0.1  # fraction of labels withheld
    augment: bool = True
    balanced: bool = False
    noise: Noise = Noise.GAUSSIAN

    def __post_init__(self) -> None:
        if self.task == Task.CLASSIFIER and self.noise != Noise.GAUSSIAN:
            raise ConfigError(f"a classifier is trained with gaussian noise, not {self.noise}")
        if self.batch < 1 or not self.learning_rate > 0 or not 0 <= self.null_share < 1 or not 0 < self.average < 1:
            raise ConfigError(f"invalid training settings: {self}")


def check_minutes(minutes: float | None) -> None:
    if minutes is not None and not minutes > 0:
        raise ConfigError(f"--minutes {minutes:g}: must be more than 0")


@dataclass(frozen=True)
class StopLimits:
    """When to stop: whichever limit is reached first."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        check_minutes(self.minutes)
        if self.steps is None and self.minutes is None:
            raise ConfigError("no training time given; use --steps or --minutes")

    def fraction_done(self, step: int, seconds: float, first_step: int = 0) -> float:
        """Steps count from the first one of all runs, of which this run began with `first_step`."""
        of_steps = (step - first_step) / (self.steps - first_step) if self.steps else 0.0
        return max(of_steps, seconds / 60 / self.minutes if self.minutes else 0.0)


@dataclass(frozen=True)
class TrainingLimits(StopLimits):
    """When to stop, save and report."""

    save_minutes: float = 5.0
    log_steps: int = 50
    weights: WeightFormat = WeightFormat.FLOAT32  # of the saved model; a run resumes from a state in full precision
