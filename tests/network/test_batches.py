import dataclasses
import threading
from itertools import islice

import numpy as np
import pytest
import torch

from anofpdm.errors import TrainingError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.network.training.batches import read_ahead, row_batches, shuffled_batches, training_rows
from anofpdm.network.training.training_config import TrainingConfig


def relabelled(cohort, labels):
    return dataclasses.replace(cohort, labels=np.broadcast_to(np.asarray(labels), len(cohort)).copy())


def batches_of(cohort, task="guided", first_step=0, **options):
    return row_batches(cohort, TrainingConfig(**{"task": task, "batch": 8, **options}), first_step)


@pytest.mark.parametrize("first_step", [0, 1, 7])
def test_every_slice_once_per_epoch_reshuffled(first_step):
    """From any step: the batches that a run without interruption has from there."""
    rows = np.arange(20, 30)
    stream = np.concatenate([*islice(shuffled_batches(rows, 4, [3]), 20)])
    epochs = stream.reshape(-1, 10)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(rows, (8, 1)))
    assert len(np.unique(epochs, axis=0)) == 8
    again = np.concatenate([*islice(shuffled_batches(rows, 4, [3], first_step), 5)])
    np.testing.assert_array_equal(again, stream[4 * first_step : 4 * first_step + 20])
    assert not np.array_equal(again, np.concatenate([*islice(shuffled_batches(rows, 4, [4], first_step), 5)]))


def test_balanced_batches_keep_the_fraction_of_unlabelled_slices(cohort):
    for rows in islice(batches_of(cohort, balanced=True), 10):
        assert np.bincount(cohort.labels[rows]).tolist() == [4, 4]
    labels = cohort.labels.copy()
    labels[::2] = NULL
    some = relabelled(cohort, labels)
    share = (labels[training_rows(some, "guided")] == NULL).mean()
    counts = np.bincount(some.labels[next(batches_of(some, balanced=True, batch=20, first_step=3))], minlength=3)
    assert counts[NULL] == round(20 * share)
    assert abs(counts[HEALTHY] - counts[UNHEALTHY]) <= 1


def test_balanced_batches_of_a_single_class(cohort):
    healthy = next(batches_of(cohort, "healthy", balanced=True))
    assert cohort.labels[healthy].tolist() == [HEALTHY] * 8
    with pytest.raises(TrainingError, match="larger --batch"):
        batches_of(cohort, balanced=True, batch=1)


def test_slices_used_by_each_task(cohort):
    labels = cohort.labels.copy()
    labels[::5] = NULL
    some, train = relabelled(cohort, labels), cohort.splits == "train"
    used = {"guided": train, "unconditional": train, "healthy": labels == HEALTHY, "classifier": labels != NULL}
    for task, kind in used.items():
        np.testing.assert_array_equal(training_rows(some, task), np.flatnonzero(train & kind))


@pytest.mark.parametrize(
    ("label", "task", "reason"),
    [
        (HEALTHY, "guided", "healthy slices only"),
        (HEALTHY, "classifier", "healthy slices only"),
        (NULL, "guided", "no labels at all"),
        (UNHEALTHY, "healthy", "no slice"),
    ],
)
def test_labels_that_do_not_suffice(cohort, label, task, reason):
    with pytest.raises(TrainingError, match=reason):
        training_rows(relabelled(cohort, label), task)


def test_read_ahead_yields_the_slices_of_each_batch(cohort):
    batches = [*islice(batches_of(cohort), 4)]
    for rows, (slices, labels) in zip(
        batches, read_ahead(cohort, iter(batches), part=slice(4, 8), pin=False), strict=True
    ):
        np.testing.assert_array_equal(slices.numpy(), cohort.slices[rows[4:]])
        np.testing.assert_array_equal(labels.numpy(), cohort.labels[rows[4:]])


def test_a_reading_error_is_raised_by_the_consumer_and_no_reader_is_left_when_it_stops(cohort):
    broken, before = dataclasses.replace(cohort, slices=cohort.slices[:3]), set(threading.enumerate())
    with pytest.raises(IndexError):
        next(read_ahead(broken, batches_of(cohort), part=slice(None), pin=False))
    batches = read_ahead(cohort, batches_of(cohort), part=slice(None), pin=False)
    next(batches)
    assert set(threading.enumerate()) - before
    batches.close()
    assert not set(threading.enumerate()) - before


class TestAugment:
    @pytest.fixture
    def slices(self):
        return torch.rand(4, 2, 24, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1

    @pytest.mark.parametrize("mirror", [1, -1])
    def test_zeros_leave_a_slice_unchanged_but_for_mirroring(self, slices, mirror):
        chances = torch.zeros(4, CHANCES + 2)
        chances[:, 4] = mirror
        expected = slices if mirror > 0 else slices.flip(3)
        torch.testing.assert_close(augment(slices, chances), expected, rtol=1e-3, atol=1e-3)

    def test_background_stays_background_and_the_range_is_kept(self, slices):
        chances = torch.rand(4, CHANCES + 2, generator=torch.Generator().manual_seed(1)) * 2 - 1
        changed = augment(slices, chances)
        assert -1 <= changed.min() < changed.max() <= 1
        assert not torch.allclose(changed, slices)
        torch.testing.assert_close(augment(torch.full_like(slices, -1), chances), torch.full_like(slices, -1))

    def test_modalities_move_together(self, slices):
        chances = torch.rand(4, CHANCES + 2) * 2 - 1
        chances[:, CHANCES:] = 0
        changed = augment(slices[:, :1].repeat(1, 2, 1, 1), chances)
        torch.testing.assert_close(changed[:, 0], changed[:, 1])
