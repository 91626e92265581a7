"""Cost of a method: network evaluations and seconds a slice."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Concatenate, ParamSpec

from torch import Tensor

from anofpdm.evaluation.comparison.models import Models
from anofpdm.util.distributed import World

Rest = ParamSpec("Rest")
Network = Callable[Concatenate[Tensor, Rest], Tensor]
STUDENT_EVALUATIONS = 2.0  # the slice and its mirror image


@dataclass(frozen=True)
class Cost:
    """Of one slice."""

    evaluations: float  # of any network
    seconds: float


class EvaluationCounter:
    """Counts the slices that pass through the networks of `models`."""

    def __init__(self, models: Models):
        self.count = 0
        self.models = replace(
            models,
            guided=self._counted(models.guided),
            healthy=models.healthy and self._counted(models.healthy),
            simplex=models.simplex and self._counted(models.simplex),
            unconditional=models.unconditional and self._counted(models.unconditional),
            classifier=models.classifier and self._counted(models.classifier),
        )

    def _counted(self, network: Network[Rest]) -> Network[Rest]:
        def counted(x: Tensor, /, *args: Rest.args, **options: Rest.kwargs) -> Tensor:
            self.count += len(x)
            return network(x, *args, **options)

        return counted


class CostMeter(EvaluationCounter):
    """Also measures the time since its creation."""

    def __init__(self, models: Models, world: World):
        super().__init__(models)
        self.world, self.start = world, time.perf_counter()

    def cost(self, n_slices: int) -> Cost:
        count = sum(self.world.all_gather(self.count))
        return Cost(count / n_slices, self.world.count * (time.perf_counter() - self.start) / n_slices)
