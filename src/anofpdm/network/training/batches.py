"""Which slices each training step uses. Determined by the seed and the step's number, so that a run can resume at any
step, with any number of processes, and use the same slices."""

from collections.abc import Generator

import numpy as np
import torch
from torch import Tensor

from anofpdm.choices import Task
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import TrainingError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.util.workers import map_in_threads

READERS = 2  # threads; each reads up to two batches in advance


class SliceOrder:
    """Every row once per epoch, reshuffled each time. If balanced, each class fills half of every batch."""

    def __init__(self, groups: list[np.ndarray], shares: list[int], seed: int):
        self.groups, self.shares, self.seed = groups, shares, seed  # a batch takes shares[i] rows of groups[i]
        self._orders: dict[int, tuple[int, np.ndarray]] = {}  # by group: epoch and order

    @classmethod
    def from_cohort(cls, cohort: Cohort, config: TrainingConfig) -> "SliceOrder":
        rows, batch, seed = training_rows(cohort, config.task), config.batch, config.seed
        labels = cohort.labels[rows]
        kinds = [kind for kind in (HEALTHY, UNHEALTHY) if kind in labels]
        if not config.balanced or not kinds:
            return cls([rows], [batch], seed)
        unlabelled = round(batch * float((labels == NULL).mean()))
        shares = [len(part) for part in np.array_split(np.arange(batch - unlabelled), len(kinds))]
        if unlabelled:
            kinds, shares = [*kinds, NULL], [*shares, unlabelled]
        if not all(shares):
            raise TrainingError(f"--balanced needs a larger --batch than {batch}: at least one slice of every kind")
        return cls([rows[labels == kind] for kind in kinds], shares, seed)

    def rows(self, step: int) -> np.ndarray:
        """[batch]: the rows of step number `step`, from 0."""
        return np.concatenate([self._take(number, step * share, share) for number, share in enumerate(self.shares)])

    def _take(self, number: int, start: int, count: int) -> np.ndarray:
        group = self.groups[number]
        epochs, places = np.divmod(np.arange(start, start + count), len(group))
        parts = [self._order(number, int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)]
        return np.concatenate(parts)

    def _order(self, number: int, epoch: int) -> np.ndarray:
        """Cached: shuffling 100,000 rows takes longer than reading a batch."""
        cached_epoch, order = self._orders.get(number, (None, self.groups[number]))
        if cached_epoch != epoch:
            order = np.random.default_rng([self.seed, number, epoch]).permutation(self.groups[number])
            self._orders[number] = epoch, order
        return order


def training_rows(cohort: Cohort, task: str) -> np.ndarray:
    """Rows of the training split that a task can use."""
    rows = cohort.rows("train")
    labels = cohort.labels[rows]
    if task == Task.HEALTHY:
        rows = rows[labels == HEALTHY]
    if task == Task.CLASSIFIER:
        rows = rows[labels != NULL]
    kinds = set(cohort.labels[rows].tolist())
    # The method needs predictions for healthy slices and for any slices; unlabelled ones can serve as the latter.
    enough = HEALTHY in kinds and len(kinds) > 1 if task == Task.GUIDED else {HEALTHY, UNHEALTHY} <= kinds
    if task in (Task.GUIDED, Task.CLASSIFIER) and not enough:
        known = kinds & {HEALTHY, UNHEALTHY}
        only = "no labels at all" if not known else f"{'healthy' if HEALTHY in known else 'unhealthy'} slices only"
        raise TrainingError(
            f"{cohort.path}: {only} in its training split, and task '{task}' needs others too; "
            "label slices of the other kind, or train with --task unconditional"
        )
    if not len(rows):
        raise TrainingError(f"{cohort.path}: no slice in its training split for task '{task}'")
    return rows


def read_ahead(
    cohort: Cohort, order: SliceOrder, steps: range, *, part: slice, pin: bool
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Slices [B, C, H, W] float16 and labels [B] of each step, read in background threads; `part` is this process's
    share of the batch."""

    def read(step: int) -> tuple[Tensor, Tensor]:
        rows = order.rows(step)[part]
        slices, labels = torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows])
        return (slices.pin_memory(), labels.pin_memory()) if pin else (slices, labels)

    yield from map_in_threads(read, steps, READERS)
