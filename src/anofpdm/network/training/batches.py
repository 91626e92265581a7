"""Which slices each training step uses. Determined by the seed and the step's number, so that a run can resume at any
step, with any number of processes, and use the same slices."""

import itertools
from collections.abc import Generator, Iterator, Sequence

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


def shuffled_batches(rows: np.ndarray, batch: int, seed: Sequence[int], first_step: int = 0) -> Iterator[np.ndarray]:
    """[batch] rows of each step, without end: every row once per epoch, reshuffled each time."""
    first_epoch, place = divmod(first_step * batch, len(rows))
    epochs = (np.random.default_rng([*seed, epoch]).permutation(rows) for epoch in itertools.count(first_epoch))
    stream = itertools.islice(itertools.chain.from_iterable(epochs), place, None)
    while True:
        yield np.fromiter(itertools.islice(stream, batch), int, batch)


def row_batches(cohort: Cohort, config: TrainingConfig, first_step: int = 0) -> Iterator[np.ndarray]:
    """[batch] rows of each step. If balanced, each class fills half of every batch."""
    rows, batch = training_rows(cohort, config.task), config.batch
    labels = cohort.labels[rows]
    groups, shares = [rows], [batch]
    kinds = [kind for kind in (HEALTHY, UNHEALTHY) if kind in labels]
    if config.balanced and kinds:
        unlabelled = round(batch * float((labels == NULL).mean()))
        shares = [len(part) for part in np.array_split(np.arange(batch - unlabelled), len(kinds))]
        if unlabelled:
            kinds, shares = [*kinds, NULL], [*shares, unlabelled]
        groups = [rows[labels == kind] for kind in kinds]
    if not all(shares):
        raise TrainingError(f"--balanced needs a larger --batch than {batch}: at least one slice of every kind")
    parts = (
        shuffled_batches(group, share, [config.seed, number], first_step)
        for number, (group, share) in enumerate(zip(groups, shares, strict=True))
    )
    return map(np.concatenate, zip(*parts, strict=True))


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
    cohort: Cohort, batches: Iterator[np.ndarray], *, part: slice, pin: bool
) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Slices [B, C, H, W] float16 and labels [B] of each batch of rows, read in background threads; `part` is this
    process's share of the batch."""

    def read(batch: np.ndarray) -> tuple[Tensor, Tensor]:
        rows = batch[part]
        slices, labels = torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows])
        return (slices.pin_memory(), labels.pin_memory()) if pin else (slices, labels)

    yield from map_in_threads(read, batches, READERS)
