"""Which slices each training step sees, and what is done to them. All of it follows from the seed and the step's
number, so that a run can be taken up anywhere, by any number of processes, and see the same."""

import queue
import threading
from collections.abc import Generator

import numpy as np
import torch
from torch import Tensor

from anofpdm.cohorts.store import Cohort
from anofpdm.errors import TrainingError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY

TASKS = ("guided", "unconditional", "healthy", "classifier")
AHEAD = 4  # batches read before they are asked for


class SliceOrder:
    """Every row once an epoch, in an order drawn anew each time; balanced, both classes fill half of each batch."""

    def __init__(self, groups: list[np.ndarray], shares: list[int], seed: int):
        self.groups, self.shares, self.seed = groups, shares, seed  # a batch takes shares[i] rows of groups[i]
        self._drawn: dict[int, tuple[int, np.ndarray]] = {}  # group to the epoch it was last drawn for, and its order

    @classmethod
    def of(cls, cohort: Cohort, task: str, *, batch: int, balanced: bool, seed: int) -> "SliceOrder":
        rows = training_rows(cohort, task)
        if not balanced:
            return cls([rows], [batch], seed)
        labels = cohort.labels[rows]
        kinds = [kind for kind in (HEALTHY, UNHEALTHY) if (labels == kind).any()]
        unlabelled = round(batch * float((labels == NULL).mean())) if kinds else batch
        shares = [len(part) for part in np.array_split(np.arange(batch - unlabelled), len(kinds))] if kinds else []
        if unlabelled:
            kinds, shares = [*kinds, NULL], [*shares, unlabelled]
        if not all(shares):
            raise TrainingError(
                f"--balanced needs a larger --batch than {batch}: every kind of slice must find a place"
            )
        return cls([rows[labels == kind] for kind in kinds], shares, seed)

    def rows(self, step: int) -> np.ndarray:
        """[batch]: the rows of step number `step`, from 0."""
        return np.concatenate(
            [self._take(number, step * share, share) for number, share in enumerate(self.shares) if share]
        )

    def _take(self, number: int, start: int, count: int) -> np.ndarray:
        group = self.groups[number]
        places = np.arange(start, start + count)
        rows = np.empty(count, dtype=np.int64)
        for epoch in np.unique(places // len(group)):
            here = places // len(group) == epoch
            rows[here] = self._order(number, int(epoch))[places[here] % len(group)]
        return rows

    def _order(self, number: int, epoch: int) -> np.ndarray:
        """Kept for the steps that follow: of 100,000 rows, drawing it takes longer than reading a batch."""
        before, order = self._drawn.get(number, (-1, self.groups[number]))
        if before != epoch:
            order = np.random.default_rng([self.seed, number, epoch]).permutation(self.groups[number])
            self._drawn[number] = epoch, order
        return order


def training_rows(cohort: Cohort, task: str) -> np.ndarray:
    """Rows of the training split that a task can learn from."""
    rows = cohort.rows("train")
    labels = cohort.labels[rows]
    if task == "healthy":
        rows = rows[labels == HEALTHY]
    if task == "classifier":
        rows = rows[labels != NULL]
    found = set(cohort.labels[rows].tolist())
    # The method asks what is healthy and what there is at all: unlabelled slices can stand for the latter.
    enough = HEALTHY in found and len(found) > 1 if task == "guided" else {HEALTHY, UNHEALTHY} <= found
    if task in ("guided", "classifier") and not enough:
        known = found & {HEALTHY, UNHEALTHY}
        said = "no labels at all" if not known else f"{'healthy' if HEALTHY in known else 'unhealthy'} slices only"
        raise TrainingError(
            f"{cohort.path}: {said} in its training split, and {task!r} needs others too; "
            "label slices of the other kind, or train with --task unconditional"
        )
    if not len(rows):
        raise TrainingError(f"{cohort.path}: no slice in its training split that {task!r} could learn from")
    return rows


def read_ahead(
    cohort: Cohort, order: SliceOrder, steps: range, *, part: slice, pin: bool
) -> Generator[tuple[int, Tensor, Tensor], None, None]:
    """Step number, slices [B, C, H, W] float16 and labels [B] of each step, read by a thread of its own; `part` is
    this process's share of the batch."""
    waiting: queue.Queue[tuple[int, Tensor, Tensor] | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def read() -> None:
        try:
            for step in steps:
                rows = order.rows(step)[part]
                slices, labels = torch.from_numpy(cohort.slices[rows]), torch.from_numpy(cohort.labels[rows])
                waiting.put((step, slices.pin_memory(), labels.pin_memory()) if pin else (step, slices, labels))
                if stop.is_set():
                    return
            waiting.put(None)
        except BaseException as problem:  # handed to the one who waits
            waiting.put(problem)

    threading.Thread(target=read, daemon=True).start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        while not waiting.empty():
            waiting.get_nowait()
