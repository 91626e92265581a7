from dataclasses import replace

import numpy as np
import pytest
import torch

from anofpdm.student import student_batches
from anofpdm.student.student_batches import training_batches
from anofpdm.student.student_network import StudentConfig
from anofpdm.student.thick_slices import REACH, THICKNESS, draw_weights, mix, own_slices, window_rows
from anofpdm.student.train_student import StudentTrainingConfig, train_student, view_loss
from tests.student.student_toys import CPU, adjacent, blobs, pseudo_labels

FINE = 400  # positions per slice in the literal version
SIDE = 2 * REACH + 1


def weights(count=60, seed=3):
    return draw_weights(count, torch.Generator().manual_seed(seed))


def drawn_thickness(count=60, seed=3):
    """Thickness of each, and the position of the centre of one thick slice."""
    uniform = torch.rand(2, count, generator=torch.Generator().manual_seed(seed)).double().numpy()
    thickness = THICKNESS[0] + uniform[0] * (THICKNESS[1] - THICKNESS[0])
    return thickness, uniform[1] * thickness


def literal(values, thickness, first, position):
    """A stack of slices as a step function, averaged over each thick slice, interpolated between their centres."""
    heights = (np.arange(SIDE * FINE) + 0.5) / FINE - REACH - 0.5
    steps = np.repeat(values, FINE)
    centres = first + thickness * np.arange(-6, 7)
    means = [steps[np.abs(heights - centre) <= thickness / 2] for centre in centres]
    return np.interp(position, centres, [covered.mean() if len(covered) else 0 for covered in means])


def test_a_thick_slice_is_the_mean_of_what_it_covers_and_between_two_is_interpolated():
    values = np.random.default_rng(0).normal(size=SIDE)
    values[[0, -1]] = values[[1, -2]]  # the literal version sees no further
    mixed = (weights().double().numpy() * values).sum(-1)
    compared = 0
    for row, (thickness, first) in enumerate(zip(*drawn_thickness(), strict=True)):
        if 1 + 1.5 * thickness > REACH + 0.5:  # may reach out of the window, whose weights then fill the rest
            continue
        expected = [literal(values, thickness, first, position) for position in (0, -1, 1)]
        np.testing.assert_allclose(mixed[row], expected, atol=0.02)
        compared += 1
    assert compared > 30


def test_weights_of_1_mix_the_slice_and_its_neighbours():
    x = torch.randn(4, SIDE * 2, 3, 3, generator=torch.Generator().manual_seed(0))
    at = torch.eye(SIDE)[[REACH, REACH - 1, REACH + 1]].expand(4, -1, -1)
    assert torch.equal(mix(x, at), own_slices(x))


def test_windows_follow_the_neighbours_and_end_with_the_scan():
    below, above = [0, 0, 1, 2, 4, 4], [1, 2, 3, 3, 5, 5]  # two scans, of four slices and of two
    rows = window_rows(np.stack([np.arange(6), below, above], axis=1))
    assert rows[2].tolist() == [0, 0, 0, 1, 2, 3, 3, 3, 3]
    assert rows[4].tolist() == [4, 4, 4, 4, 4, 5, 5, 5, 5]


@pytest.fixture
def data():
    slices = np.random.default_rng(0).uniform(-1, 1, (12, 2, 8, 8)).astype(np.float16).astype(np.float32)
    return pseudo_labels(slices, np.zeros((12, 8, 8), bool), adjacent(12))


@pytest.mark.parametrize("thick", [False, True])
def test_batches_are_the_same_from_memory_and_from_files(data, monkeypatch, thick):
    """The reader of a GPU works on any device."""
    batches = []
    for fits in (True, False):
        monkeypatch.setattr(student_batches, "_fits", lambda *_, fits=fits: fits)
        source = training_batches(data, 5, 3, CPU, thick_slices=thick)
        batches.append([next(source) for _ in range(4)])
    for from_memory, from_files in zip(*batches, strict=True):
        assert all(torch.equal(*parts) for parts in zip(from_memory, from_files, strict=True))


def test_thick_slices_follow_the_same_slices_as_they_are(data):
    data = replace(data, optional=[1])
    alone, whole = (next(training_batches(data, 6, 0, CPU, thick_slices=thick)) for thick in (False, True))
    thin, thick = whole.x
    assert torch.equal(thin, alone.x[0])
    assert all(torch.equal(*parts) for parts in zip(whole[1:], alone[1:], strict=True))
    assert thick.std() < 0.9 * thin.std()


def test_the_difference_of_views_is_that_of_their_predictions():
    logits, slices = torch.randn(3, 4, 4), torch.randn(3)
    same = view_loss(torch.cat([logits * 9, logits * 9]), torch.cat([slices, slices]))
    assert abs(float(same)) < 1e-6
    certain = torch.full((1, 4, 4), 30.0)  # probabilities 1 and 0
    torch.testing.assert_close(
        view_loss(torch.cat([certain, -certain]), torch.tensor([0.0, 3.0])), torch.tensor(1 + 0.2 * 2.5)
    )


def test_a_student_of_two_views_has_the_same_prediction_for_both(monkeypatch):
    """Slices whose thick version is another image: trained with views, the outputs differ less."""
    monkeypatch.setattr(student_batches, "PASTE_SHARE", 0.0)
    data = pseudo_labels(*blobs(24, 16), adjacent(24))
    config = StudentConfig(("flair",), 16, (-1.0, 1.0), 8, (1, 2))
    views = next(training_batches(data, 24, 0, CPU, thick_slices=True)).x
    gaps = []
    for thick in (False, True):
        training = StudentTrainingConfig(30, batch=8, learning_rate=3e-3, thick_slices=thick)
        network = train_student(config, data, training, CPU)
        with torch.no_grad():
            thin_masks, thick_masks = (network(view)[0].sigmoid() for view in views)
        gaps.append(float((thin_masks - thick_masks).abs().mean()))
    assert gaps[1] < gaps[0]
