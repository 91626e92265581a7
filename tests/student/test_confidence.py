"""The estimated DICE of a student's masks: closed forms, sampled masks, and the whole student."""

import csv
import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from anofpdm.student.confidence import estimate_dice, expected_dice, mirror_agreement

from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import Decisions
from anofpdm.method.detection import CurveDetector
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.segment.outputs import SLICES, SUMMARY
from anofpdm.segment.result import average_estimate
from anofpdm.student.predict import predict_both, predict_slices
from anofpdm.student.student import Student, StudentCalibration
from anofpdm.student.student_network import StudentConfig, StudentNet
from tests.segment.known_model import BY_HEALTHY, SIZE, known_model, scan_files

CPU = torch.device("cpu")


def random_masks(seed, shape=(6, 20, 20)):
    return np.random.default_rng(seed).random(shape) < 0.4


def test_with_certain_probabilities_the_expected_dice_is_that_of_two_masks():
    first, second = random_masks(0), random_masks(1)
    np.testing.assert_allclose(expected_dice(first.astype(float), second), dice(first, second))


def test_the_expected_dice_is_the_mean_over_masks_drawn_from_the_probabilities():
    rng = np.random.default_rng(2)
    probabilities = rng.beta(0.5, 0.8, (1, 60, 60))
    drawn = rng.random((300, 60, 60)) < probabilities
    mask = probabilities >= 0.5
    mean = dice(drawn, np.broadcast_to(mask, drawn.shape).copy()).mean()
    assert expected_dice(probabilities, mask)[0] == pytest.approx(mean, abs=0.005)


def test_agreement_is_the_dice_of_the_regions_above_the_thresholds():
    rng = np.random.default_rng(3)
    first, second, thresholds = rng.normal(size=(6, 20, 20)), rng.normal(size=(6, 20, 20)), rng.normal(size=6)
    cuts = thresholds[:, None, None]
    np.testing.assert_allclose(mirror_agreement(first, second, thresholds), dice(first >= cuts, second >= cuts))
    np.testing.assert_allclose(mirror_agreement(first, first, thresholds), 1)


def test_the_estimate_is_1_only_for_equal_and_certain_predictions():
    mask = random_masks(4)
    logits, zero = np.where(mask, 50.0, -50.0), np.zeros(6)
    assert estimate_dice((logits, logits), zero, mask.astype(float), mask) == pytest.approx(1)
    assert (estimate_dice((logits, np.roll(logits, 1, axis=1)), zero, mask.astype(float), mask) < 1).all()
    assert (estimate_dice((logits, logits), zero, np.where(mask, 0.9, 0.1), mask) < 0.95).all()


def test_an_empty_mask_has_no_estimate():
    mask, zero = random_masks(5), np.zeros(6)
    mask[2] = False
    logits = np.where(random_masks(5), 50.0, -50.0)
    assert np.isnan(estimate_dice((logits, logits), zero, np.full(mask.shape, 0.5), mask)).tolist() == [
        number == 2 for number in range(6)
    ]


def decisions_with(masks, estimates):
    empty = np.full(len(masks), np.nan)
    values = {field.name: empty for field in fields(Decisions)}
    values |= {"maps": masks, "masks": masks, "drawn": masks, "estimated_dice": np.array(estimates)}
    return Decisions(**values)


def test_the_estimate_of_a_scan_is_weighted_by_area():
    """Which makes it the DICE of the volume where both masks of every slice have the same area."""
    masks = random_masks(6)
    moved = np.roll(masks, 2, axis=2)
    whole = dice(masks.reshape(1, -1, 20), moved.reshape(1, -1, 20))[0]
    assert average_estimate(decisions_with(masks, dice(masks, moved))) == pytest.approx(whole)
    masks[1] = False
    known = [0.5, np.nan, 0.5, 0.5, 0.5, 0.5]
    assert average_estimate(decisions_with(masks, known)) == pytest.approx(0.5)
    assert np.isnan(average_estimate(decisions_with(masks, [np.nan] * 6)))


@pytest.fixture
def student():
    torch.manual_seed(0)
    detector = CurveDetector(np.array([0.0]), np.array([1.0]), np.array([0.0]), offset=1.0, strength=1.0)
    network = StudentNet(StudentConfig(("flair",), 32, width=8, multipliers=(1, 2))).eval()
    return Student(network, StudentCalibration(detector, 1, 1, 5, 5, smallest=4), "", CPU)


def make_slices():
    pixels = np.random.default_rng(0).normal(size=(9, 1, 32, 32)).astype(np.float32)
    return (lambda rows: pixels[rows]), SlicePositions(np.zeros(9), 4.0 * np.arange(9))


def test_predictions_are_the_mean_of_both_passes(student):
    pixels, positions = make_slices()
    both, means = (run(student.network, pixels, positions, CPU) for run in (predict_both, predict_slices))
    for passes, mean in zip(both, means, strict=True):
        np.testing.assert_array_equal(passes.mean(axis=0), mean)
    flipped, _ = predict_both(student.network, lambda rows: pixels(rows)[..., ::-1].copy(), positions, CPU)
    np.testing.assert_allclose(flipped[1], both[0][0][..., ::-1], atol=1e-5)  # its mirror image is the slice itself


def test_every_mask_of_a_student_has_an_estimate(student):
    decisions = student.decide(*make_slices())
    has_mask = decisions.masks.any(axis=(1, 2))
    assert has_mask.any()
    np.testing.assert_array_equal(np.isfinite(decisions.estimated_dice), has_mask)
    assert (decisions.estimated_dice[has_mask] <= 1).all()
    assert (decisions.estimated_dice[has_mask] >= 0).all()


def test_the_estimate_is_saved(student, tmp_path):
    """Of a scan with a lesion, in summary.json and slices.csv; null and nan for the diffusion engine."""
    files, _, _ = scan_files(tmp_path)
    network = StudentNet(StudentConfig(("flair", "t2"), SIZE, width=8, multipliers=(1, 2))).eval()
    model = replace(known_model(), student=replace(student, network=network))
    for engine in ("student", "diffusion"):
        result = model.segment(files, engine=engine, **({} if engine == "student" else BY_HEALTHY))
        result.save(tmp_path / engine, picture=False)
        saved = json.loads((tmp_path / engine / SUMMARY).read_text())["estimated_dice"]
        column = [float(row["estimated_dice"]) for row in csv.DictReader((tmp_path / engine / SLICES).open())]
        if engine == "student":
            assert saved == pytest.approx(result.estimated_dice, abs=1e-4)
            np.testing.assert_allclose(column, result.decisions.estimated_dice, atol=1e-4)
        else:
            assert saved is None
            assert np.isnan(column).all()
            assert np.isnan(result.estimated_dice)
