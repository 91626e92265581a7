"""The user's choices of how a student's logits become masks. Without them, the calibration decides."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from anofpdm.errors import ConfigError


@dataclass(frozen=True)
class DrawingChoices:
    """The detector is not affected: a slice that it calls healthy has no mask."""

    threshold_probability: float | None = None  # of every pixel; None: 0.5, or lower in faint and in small lesions
    smallest: int | None = None  # components of so many pixels or fewer (of 128 x 128) are dropped

    def __post_init__(self) -> None:
        probability = self.threshold_probability
        if probability is not None and not 0 < probability < 1:
            raise ConfigError(f"--threshold-probability must be above 0 and below 1, got {probability:g}")
        if self.smallest is not None and self.smallest < 0:
            raise ConfigError(f"--smallest must be at least 0, got {self.smallest}")

    @property
    def threshold_logit(self) -> float | None:
        probability = self.threshold_probability
        return None if probability is None else math.log(probability / (1 - probability))

    def settings(self) -> dict[str, Any]:
        """Those that were made."""
        return {name: value for name, value in asdict(self).items() if value is not None}


CALIBRATED = DrawingChoices()
