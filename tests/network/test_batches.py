import dataclasses
import threading

import numpy as np
import pytest
import torch

from anofpdm.errors import TrainingError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.network.training.batches import SliceOrder, read_ahead, training_rows


def relabelled(cohort, labels):
    return dataclasses.replace(cohort, labels=np.broadcast_to(np.asarray(labels), len(cohort)).copy())


def order_of(cohort, **options):
    return SliceOrder.from_cohort(cohort, "guided", **{"batch": 8, "balanced": False, "seed": 0, **options})


def test_every_slice_once_per_epoch_reshuffled(cohort):
    rows = training_rows(cohort, "guided")
    stream = np.concatenate([order_of(cohort).rows(step) for step in range(2 * len(rows) // 8 + 2)])
    first, second = stream[: len(rows)], stream[len(rows) : 2 * len(rows)]
    np.testing.assert_array_equal(np.sort(first), rows)
    np.testing.assert_array_equal(np.sort(second), rows)
    assert not np.array_equal(first, second)


def test_the_order_follows_from_seed_and_step(cohort):
    np.testing.assert_array_equal(order_of(cohort).rows(41), order_of(cohort).rows(41))
    assert not np.array_equal(order_of(cohort).rows(41), order_of(cohort, seed=1).rows(41))


def test_the_order_does_not_depend_on_previous_calls(cohort):
    """Steps of two epochs, in any order, and across the end of an epoch."""
    order, steps = order_of(cohort, balanced=True), (0, 41, 3, 40, 0, 5, 4)
    for step in steps:
        np.testing.assert_array_equal(order.rows(step), order_of(cohort, balanced=True).rows(step))


def test_balanced_batches(cohort):
    for step in range(30):
        labels = cohort.labels[order_of(cohort, balanced=True).rows(step)]
        assert np.bincount(labels).tolist() == [4, 4]


def test_balanced_batches_keep_the_fraction_of_unlabelled_slices(cohort):
    labels = cohort.labels.copy()
    labels[::2] = NULL
    some = relabelled(cohort, labels)
    share = (labels[training_rows(some, "guided")] == NULL).mean()
    counts = np.bincount(some.labels[order_of(some, balanced=True, batch=20).rows(3)], minlength=3)
    assert counts[NULL] == round(20 * share)
    assert abs(counts[HEALTHY] - counts[UNHEALTHY]) <= 1


def test_balanced_batches_of_a_single_class(cohort):
    healthy = SliceOrder.from_cohort(cohort, "healthy", batch=8, balanced=True, seed=0).rows(3)
    assert (cohort.labels[healthy] == HEALTHY).all()
    assert len(healthy) == 8
    with pytest.raises(TrainingError, match="larger --batch"):
        order_of(cohort, balanced=True, batch=1)


def test_slices_used_by_each_task(cohort):
    labels = cohort.labels.copy()
    labels[::5] = NULL
    some = relabelled(cohort, labels)
    train = some.splits == "train"
    np.testing.assert_array_equal(training_rows(some, "guided"), np.flatnonzero(train))
    np.testing.assert_array_equal(training_rows(some, "unconditional"), np.flatnonzero(train))
    np.testing.assert_array_equal(training_rows(some, "healthy"), np.flatnonzero(train & (labels == HEALTHY)))
    np.testing.assert_array_equal(training_rows(some, "classifier"), np.flatnonzero(train & (labels != NULL)))


@pytest.mark.parametrize("task", ["guided", "classifier"])
def test_guidance_needs_both_kinds(cohort, task):
    with pytest.raises(TrainingError, match="healthy slices only"):
        training_rows(relabelled(cohort, HEALTHY), task)
    with pytest.raises(TrainingError, match="no labels at all"):
        training_rows(relabelled(cohort, NULL), task)
    with pytest.raises(TrainingError, match="no slice"):
        training_rows(relabelled(cohort, UNHEALTHY), "healthy")


def test_read_ahead_yields_the_slices_of_each_step(cohort):
    order = order_of(cohort)
    batches = list(read_ahead(cohort, order, range(5, 9), part=slice(4, 8), pin=False))
    for step, (slices, labels) in zip(range(5, 9), batches, strict=True):
        rows = order.rows(step)[4:8]
        np.testing.assert_array_equal(slices.numpy(), cohort.slices[rows])
        np.testing.assert_array_equal(labels.numpy(), cohort.labels[rows])


def test_a_reading_error_is_raised_by_the_consumer(cohort):
    broken = dataclasses.replace(cohort, slices=cohort.slices[:3])
    with pytest.raises(IndexError):
        list(read_ahead(broken, order_of(cohort), range(3), part=slice(None), pin=False))


def test_no_reader_is_left_when_the_consumer_stops(cohort):
    before = set(threading.enumerate())
    batches = read_ahead(cohort, order_of(cohort), range(1000), part=slice(None), pin=False)
    next(batches)
    assert set(threading.enumerate()) - before
    batches.close()
    assert not set(threading.enumerate()) - before


class TestAugment:
    @pytest.fixture
    def slices(self):
        return torch.rand(4, 2, 24, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def test_zeros_leave_a_slice_unchanged(self, slices):
        still = torch.zeros(4, CHANCES + 2)
        torch.testing.assert_close(augment(slices, still), slices, rtol=1e-3, atol=1e-3)

    def test_mirrored_left_to_right(self, slices):
        chances = torch.zeros(4, CHANCES + 2)
        chances[:, 4] = -1
        torch.testing.assert_close(augment(slices, chances), slices.flip(3), rtol=1e-3, atol=1e-3)

    def test_background_stays_background_and_the_range_is_kept(self, slices):
        chances = torch.rand(4, CHANCES + 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
        changed = augment(slices, chances)
        assert changed.min() >= -1
        assert changed.max() <= 1
        assert not torch.allclose(changed, slices)
        torch.testing.assert_close(augment(torch.full_like(slices, -1), chances), torch.full_like(slices, -1))

    def test_modalities_move_together(self):
        both = torch.rand(3, 1, 24, 24).expand(-1, 2, -1, -1) * 2 - 1
        chances = torch.rand(3, CHANCES + 2) * 2 - 1
        chances[:, CHANCES:] = 0
        changed = augment(both.contiguous(), chances)
        torch.testing.assert_close(changed[:, 0], changed[:, 1])
