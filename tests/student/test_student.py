"""The student: what it is shown, how it learns, what it decides, and what it can never reach."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch

from anofpdm.errors import CalibrationError, ConfigError, ModelError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.method.mask import mask
from anofpdm.network import checkpoint
from anofpdm.student.model import (
    Student,
    StudentCalibration,
    asked,
    calibrated,
    cuts_of,
    load_student,
    save_student,
)
from anofpdm.student.network import StudentConfig, StudentNet, log_odds
from anofpdm.student.targets import Lessons, neighbours_of, shown_together, usual_neighbours
from anofpdm.student.training import Schooling, label_loss, lesson_loss, rows_of_step, share_done, teach

CPU = torch.device("cpu")
DETECTOR = CurveDetector(np.array([1.0]), np.array([2.0]), np.array([3.0]), offset=0.5, strength=1.0)
SMALL = StudentConfig(("flair",), 32, width=8, multipliers=(1, 2))


def blobs(count=48, size=32, seed=0):
    """Slices with a bright disc in every second one, and the disc's mask."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    slices, masks = (
        rng.normal(-0.5, 0.1, (count, 1, size, size)).astype(np.float32),
        np.zeros((count, size, size), bool),
    )
    for number in range(0, count, 2):
        cy, cx, r = rng.uniform((10, 10, 4), (22, 22, 7))
        masks[number] = (y - cy) ** 2 + (x - cx) ** 2 < r**2
        slices[number, 0][masks[number]] += 0.8
    return slices, masks


def alone(count):
    return SlicePositions(np.zeros(count), np.arange(count) * 1000.0)


def lessons_of(pixels, masks):
    labels = np.where(masks.any((1, 2)), UNHEALTHY, HEALTHY)
    return Lessons(pixels, masks * np.uint8(255), neighbours_of(alone(len(masks)), ()), labels)


@pytest.fixture(scope="module")
def taught():
    slices, masks = blobs()
    lessons = lessons_of(lambda rows: slices[rows], masks)
    return teach(SMALL, lessons, Schooling(steps=240, batch=8, learning_rate=3e-3), CPU)


class TestWhatItIsShown:
    def test_neighbours_are_the_nearest_slices_of_the_same_scan(self):
        places = SlicePositions(np.array(["a", "a", "a", "b", "b"]), np.array([0.0, 2, 4, 0, 4]))
        found = neighbours_of(places, (-4.0, 4.0))
        # 2 mm away is near enough to stand for 4, nothing at all for what lies outside the scan.
        assert found.tolist() == [[0, 0, 2], [1, 0, 2], [2, 0, 2], [3, 3, 4], [4, 3, 4]]

    def test_unless_told_it_sees_the_slices_on_both_sides(self):
        thick = SlicePositions(np.array(["a", "a", "a", "b"]), np.array([0.0, 6, 12, 0]))
        assert usual_neighbours(thick) == (-6.0, 6.0)
        thin = SlicePositions(np.array(["a", "a", "a"]), np.array([0.0, 1, 2]))
        assert usual_neighbours(thin) == usual_neighbours(alone(1)) == (-2.0, 2.0)

    def test_together_they_are_stacked_in_order(self):
        slices = np.arange(3)[:, None, None, None] * np.ones((3, 2, 4, 4), np.float32)
        together = shown_together(lambda rows: slices[rows], np.array([[1, 0], [2, 2]]))
        assert together.shape == (2, 4, 4, 4)
        assert together[:, :, 0, 0].tolist() == [[1, 1, 0, 0], [2, 2, 2, 2]]

    def test_slice_and_mask_are_changed_together(self):
        _, masks = blobs(8)
        bright = np.where(masks[:, None], 0.9, -0.9).astype(np.float32)
        lessons = lessons_of(lambda rows: bright[rows], masks)
        x, mask = lessons.batch(np.arange(8), lessons.inputs(np.arange(8)), torch.Generator().manual_seed(1), CPU)
        inside = mask > 0.95
        assert inside.any()
        assert (x[:, 0][inside] > 0.3).float().mean() > 0.99
        assert (x[:, 0][mask < 0.05] < -0.3).float().mean() > 0.99
        assert not torch.equal(mask, torch.from_numpy(masks).float())

    def test_the_same_step_shows_the_same(self):
        _, masks = blobs(8)
        lessons = lessons_of(lambda rows: masks[rows, None].astype(np.float32), masks)
        one, two = (
            lessons.batch(np.arange(4), lessons.inputs(np.arange(4)), torch.Generator().manual_seed(5), CPU)
            for _ in range(2)
        )
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])


class TestLearning:
    def test_it_learns_to_draw(self, taught):
        slices, masks = blobs(seed=9)
        odds, whole = asked(taught, lambda rows: slices[rows], alone(len(slices)), CPU)
        drawn = odds >= 0
        both = (drawn & masks).sum()
        assert 2 * both / (drawn.sum() + masks.sum()) > 0.9
        assert ((whole >= 0) == masks.any((1, 2))).mean() > 0.95

    def test_the_loss_is_the_formula(self):
        odds, mask = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[[1.0, 0.0]]])
        chance = 1 / (1 + np.exp([-2.0, 1.0]))
        entropy = -(np.log(chance[0]) + np.log(1 - chance[1])) / 2
        dice = 2 * chance[0] / (chance.sum() + 1)
        assert float(lesson_loss(odds, mask)) == pytest.approx(entropy + 1 - dice)

    def test_what_nobody_said_anything_of_teaches_no_label(self):
        whole = torch.tensor([2.0, -1.0, 50.0])
        found = label_loss(whole, torch.tensor([UNHEALTHY, HEALTHY, NULL]))
        assert float(found) == pytest.approx((np.log1p(np.exp(-2)) + np.log1p(np.exp(-1))) / 2)
        assert float(label_loss(whole, torch.full((3,), NULL))) == 0

    def test_every_slice_comes_once_a_round(self):
        schooling = Schooling(steps=10, batch=4)
        rows = np.concatenate([rows_of_step(10, step, schooling) for step in range(5)])
        assert sorted(rows[:10]) == list(range(10))
        assert sorted(rows[10:]) == list(range(10))

    def test_steps_or_minutes_whichever_ends_first(self):
        assert share_done(Schooling(steps=10, minutes=1.0), 5, 6.0) == 0.5
        assert share_done(Schooling(steps=100, minutes=1.0), 5, 30.0) == 0.5
        with pytest.raises(ConfigError, match="--steps or --minutes"):
            Schooling(steps=None)

    def test_the_same_seed_teaches_the_same(self):
        slices, masks = blobs(8)
        lessons = lessons_of(lambda rows: slices[rows], masks)
        one, two = (teach(SMALL, lessons, Schooling(steps=3, batch=4), CPU) for _ in range(2))
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b)


class TestDeciding:
    def test_a_mirrored_slice_gets_the_mirrored_answer(self, taught):
        x = torch.from_numpy(blobs(4)[0])
        (odds, whole), (mirrored, whole_mirrored) = log_odds(taught, x), log_odds(taught, x.flip(-1))
        torch.testing.assert_close(mirrored, odds.flip(-1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(whole_mirrored, whole, rtol=1e-4, atol=1e-4)

    def test_a_slice_is_cut_where_the_smallest_lesion_fits(self):
        """At even odds; where fewer pixels reach those than a component must have, lower."""
        odds = np.full((3, 128, 128), -9.0)
        odds[0, 20:30, 20:30] = 1.0  # 100 pixels
        odds[1, 20:30, 20:30] = -2.0
        odds[1, 22:25, 22:25] = 1.0  # 9 of them
        odds[2, 20:24, 20:24] = 1.0
        assert cuts_of(odds).tolist() == [0.0, -2.0, -9.0]
        assert mask(odds[:2], cuts_of(odds[:2])).sum((1, 2)).tolist() == [100, 100]

    def test_a_slice_smaller_than_the_smallest_lesion_is_cut_too(self):
        assert cuts_of(np.ones((2, 4, 4)), 40 * 128 * 128).tolist() == [0, 0]

    def test_calibrated_by_labels_it_tells_slices_apart(self, taught):
        slices, masks = blobs(seed=3)
        labels = masks.any((1, 2)).astype(int)
        patients = np.arange(len(labels)) // 8
        found = calibrated(taught, lambda rows: slices[rows], labels, patients, alone(len(labels)), CPU)
        assert found.accuracy == 1.0
        assert found.sign == "slice"
        student = Student(taught, found, "teacher", CPU)
        decisions = student.decide(lambda rows: slices[rows], alone(len(labels)))
        assert (decisions.detected == (labels == 1)).all()
        assert not decisions.masks[labels == 0].any()
        assert np.isnan(decisions.similarity).all()
        assert ((decisions.maps >= 0) & (decisions.maps <= 1)).all()

    def test_where_it_says_nothing_of_whole_slices_it_goes_by_its_pixels(self, taught):
        """As where no slice was labelled in training."""
        network = copy.deepcopy(taught)
        for parameter in network.whole.parameters():
            torch.nn.init.zeros_(parameter)
        slices, masks = blobs(seed=3)
        known, patients = masks.any((1, 2)).astype(int), np.arange(len(masks)) // 8
        found = calibrated(network, lambda rows: slices[rows], known, patients, alone(len(known)), CPU)
        assert (found.sign, found.accuracy) == ("pixels", 1.0)
        again = StudentCalibration.from_said(json.loads(json.dumps(found.said())))
        decisions = Student(network, again, "teacher", CPU).decide(lambda rows: slices[rows], alone(len(known)))
        assert (decisions.detected == (known == 1)).all()

    def test_labels_of_one_kind_cannot_calibrate(self, taught):
        slices, _ = blobs(4)
        with pytest.raises(CalibrationError, match="one kind is missing"):
            calibrated(taught, lambda rows: slices[rows], np.zeros(4, int), np.arange(4), alone(4), CPU)


class TestOnDisk:
    def student(self, network):
        return Student(network, StudentCalibration(DETECTOR, 0.9, 0.95, 5, 6), "abc", CPU)

    def test_saved_and_loaded_it_is_the_same(self, taught, tmp_path):
        save_student(tmp_path, self.student(taught), {"slices": 3})
        again = load_student(tmp_path, "abc", CPU)
        assert again.calibration.said() == self.student(taught).calibration.said()
        assert again.config == SMALL
        x = torch.from_numpy(blobs(2)[0])
        for one, two in zip(log_odds(again.network, x), log_odds(taught, x), strict=True):
            assert torch.equal(one, two)

    def test_none_where_there_is_none(self, tmp_path):
        assert load_student(tmp_path, "abc", CPU) is None

    def test_another_models_student_is_refused(self, taught, tmp_path):
        save_student(tmp_path, self.student(taught), {})
        with pytest.raises(ModelError, match="another model"):
            load_student(tmp_path, "other", CPU)

    @pytest.mark.parametrize("wrong", [{"calibration": {"cut": 0.3}}, {"network": {"depth": 3}}, {"network": None}])
    def test_of_an_older_version_or_damaged_it_is_refused(self, taught, tmp_path, wrong):
        save_student(tmp_path, self.student(taught), {})
        weights, said, _ = checkpoint.load_model(tmp_path / "student")
        said.pop("sha256", None)
        checkpoint.save_model(tmp_path / "student", weights, {**said, **wrong})
        with pytest.raises(ModelError, match="distill again"):
            load_student(tmp_path, "abc", CPU)

    def test_a_detector_of_something_else_is_refused(self, taught):
        said = self.student(taught).calibration.said()
        said["detector"]["weights"] = [1.0, 2.0]
        with pytest.raises(ValueError, match="one number"):
            StudentCalibration.from_said(said)

    def test_half_weights_say_nearly_the_same(self, taught, tmp_path):
        save_student(tmp_path, self.student(taught), {}, half=True)
        again = load_student(tmp_path, "abc", CPU)
        x = torch.from_numpy(blobs(2)[0])
        torch.testing.assert_close(log_odds(again.network, x), log_odds(taught, x), rtol=0.02, atol=0.05)


def test_impossible_students_are_refused():
    with pytest.raises(ConfigError, match="cannot be halved"):
        StudentConfig(("t1",), 36, width=8, multipliers=(1, 2, 4, 4))
    with pytest.raises(ConfigError, match="8 divides"):
        dataclasses.replace(SMALL, width=12)


def test_neighbours_widen_its_input():
    config = dataclasses.replace(SMALL, neighbours_mm=(-4.0, 4.0))
    odds, whole = StudentNet(config)(torch.zeros(1, 3, 32, 32))
    assert (odds.shape, whole.shape) == ((1, 32, 32), (1,))


def test_as_onnx_it_draws_the_same(taught, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from anofpdm.student.export import export_onnx

    student = Student(taught, StudentCalibration(DETECTOR, 0.9, 0.95, 5, 6), "abc", CPU)
    export_onnx(student, tmp_path / "student.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "student.onnx", providers=["CPUExecutionProvider"])
    slices, _ = blobs(12, seed=4)
    for count in (1, 12):
        odds, whole = session.run(None, {"slices": slices[:count]})
        ours, our_whole = (part.numpy() for part in log_odds(taught, torch.from_numpy(slices[:count])))
        np.testing.assert_allclose(odds, ours, atol=1e-3)
        np.testing.assert_allclose(whole, our_whole, atol=1e-3)
        both = ((odds >= 0) & (ours >= 0)).sum()
        assert 2 * both / ((odds >= 0).sum() + (ours >= 0).sum()) > 0.999
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["anofpdm_config"])["modalities"] == ["flair"]
    assert json.loads(said["anofpdm_calibration"]) == student.calibration.said()
