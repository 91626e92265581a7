"""The student: inputs, training, decisions, files."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from anofpdm.student.cpu_passes import CpuStudent

from anofpdm.errors import CalibrationError, ConfigError, ModelError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.method.mask import mask
from anofpdm.network import checkpoint
from anofpdm.options import WeightFormat
from anofpdm.student.fit_detector import fit_student_calibration
from anofpdm.student.predict import predict_slices
from anofpdm.student.student import DetectBy, Student, StudentCalibration, load_student, mask_thresholds, save_student
from anofpdm.student.student_batches import draw_missing, paste_lesions, rows_of_step, training_batches
from anofpdm.student.student_network import (
    StudentConfig,
    StudentNet,
    default_neighbours_mm,
    neighbour_rows,
    predict_logits,
    predict_passes,
    stack_slices,
)
from anofpdm.student.targets import PseudoLabels
from anofpdm.student.train_student import StudentTrainingConfig, label_loss, mask_loss, train_student

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


def far_apart(count):
    """Slices without neighbours."""
    return SlicePositions(np.zeros(count), np.arange(count) * 1000.0)


def pseudo_labels(pixels, masks):
    labels = np.where(masks.any((1, 2)), UNHEALTHY, HEALTHY)
    return PseudoLabels(pixels, masks * np.uint8(255), neighbour_rows(far_apart(len(masks)), ()), labels)


@pytest.fixture(scope="module")
def trained():
    slices, masks = blobs()
    data = pseudo_labels(lambda rows: slices[rows], masks)
    return train_student(SMALL, data, StudentTrainingConfig(steps=240, batch=8, learning_rate=3e-3), CPU)


class TestInputs:
    def test_neighbours_are_the_nearest_slices_of_the_same_scan(self):
        places = SlicePositions(np.array(["a", "a", "a", "b", "b"]), np.array([0.0, 2, 4, 0, 4]))
        found = neighbour_rows(places, (-4.0, 4.0))
        # 2 mm away is near enough to stand for 4, nothing at all for what lies outside the scan.
        assert found.tolist() == [[0, 0, 2], [1, 0, 2], [2, 0, 2], [3, 3, 4], [4, 3, 4]]

    def test_default_neighbours_are_one_slice_on_each_side(self):
        thick = SlicePositions(np.array(["a", "a", "a", "b"]), np.array([0.0, 6, 12, 0]))
        assert default_neighbours_mm(thick) == (-6.0, 6.0)
        thin = SlicePositions(np.array(["a", "a", "a"]), np.array([0.0, 1, 2]))
        assert default_neighbours_mm(thin) == default_neighbours_mm(far_apart(1)) == (-2.0, 2.0)

    def test_slices_are_stacked_in_order(self):
        slices = np.arange(3)[:, None, None, None] * np.ones((3, 2, 4, 4), np.float32)
        together = stack_slices(lambda rows: slices[rows], np.array([[1, 0], [2, 2]]))
        assert together.shape == (2, 4, 4, 4)
        assert together[:, :, 0, 0].tolist() == [[1, 1, 0, 0], [2, 2, 2, 2]]

    def test_slice_and_mask_are_augmented_together(self):
        _, masks = blobs(8)
        bright = np.where(masks[:, None], 0.9, -0.9).astype(np.float32)
        data = pseudo_labels(lambda rows: bright[rows], masks)
        x, mask, _ = next(training_batches(data, 8, 1, CPU)).augment()
        inside = mask > 0.95
        assert inside.any()
        assert (x[:, 0][inside] > 0.3).float().mean() > 0.99
        assert (x[:, 0][mask < 0.05] < -0.3).float().mean() > 0.99
        unchanged = [torch.from_numpy(one).float() for one in masks if one.any()]
        assert not any(torch.equal(one, other) for one in mask for other in unchanged)

    def test_augmentation_follows_from_the_seed(self):
        _, masks = blobs(8)
        data = pseudo_labels(lambda rows: masks[rows, None].astype(np.float32), masks)
        one, two = (next(training_batches(data, 4, 5, CPU)).augment() for _ in range(2))
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[1], two[1])

    def test_lesions_are_pasted_into_slices_without_one(self):
        x = torch.full((3, 1, 16, 16), -0.5)
        x[0, :, 4:12, 4:12] = 0.8
        mask = torch.zeros(3, 16, 16)
        mask[0, 4:12, 4:12] = 1
        labels = torch.tensor([UNHEALTHY, HEALTHY, HEALTHY])
        images, masks, after = paste_lesions(x, mask, labels, torch.ones(3, dtype=torch.bool))
        assert torch.equal(masks[1], mask[0])
        assert images[1, 0, 8, 8] > images[1, 0, 0, 8] + 0.5
        assert after.tolist() == [UNHEALTHY, NULL, HEALTHY]  # the third has a neighbour without a lesion
        for unchanged in (0, 2):
            torch.testing.assert_close(images[unchanged], x[unchanged])
            torch.testing.assert_close(masks[unchanged], mask[unchanged])

    def test_nothing_is_pasted_unless_chosen(self):
        _, masks = blobs(8)
        data = pseudo_labels(lambda rows: masks[rows, None].astype(np.float32), masks)
        shares = {share: next(training_batches(data, 8, 5, CPU, share)).pasted.float().mean() for share in (0.0, 1.0)}
        assert shares == {0.0: 0, 1.0: 1}

    def test_optional_modalities_are_missing_in_a_quarter_of_the_slices(self):
        """With their neighbours; a missing channel is background, and the others are unchanged."""
        masks = np.zeros((200, 16, 16), bool)
        pixels = np.random.default_rng(0).uniform(-0.9, 0.9, (200, 3, 16, 16)).astype(np.float32)
        neighbours = neighbour_rows(SlicePositions(np.zeros(200), np.arange(200.0)), (-1.0, 1.0))
        data = PseudoLabels(lambda rows: pixels[rows], masks * np.uint8(255), neighbours, np.zeros(200, int))
        whole, some = (next(training_batches(data, 200, 3, CPU, 0.0, optional)) for optional in ((), (0, 2)))
        assert not whole.missing.any()
        missing = some.missing.view(200, 3, 3)  # slice, offset, modality
        assert torch.equal(missing[:, 0], missing[:, 1])
        assert not missing[:, :, 1].any()
        assert 0.18 < missing[:, :, 0].float().mean() < 0.32
        assert not torch.equal(missing[:, :, 0], missing[:, :, 2])
        x, before = some.augment()[0], whole.augment()[0]
        assert (x[some.missing] == -1).all()
        assert torch.equal(x[~some.missing], before[~some.missing])

    def test_further_modalities_are_missing_together_in_half_of_the_other_slices(self):
        missing = draw_missing(4000, 9, 3, (1, 2), (1, 2), torch.Generator().manual_seed(0)).view(4000, 3, 3)[:, 0]
        assert not missing[:, 0].any()
        np.testing.assert_allclose(missing[:, 1:].float().mean(0), 1 - 0.75 * 0.5, atol=0.03)
        assert abs(missing[:, 1:].all(1).float().mean() - (0.5 + 0.5 * 0.25**2)) < 0.03

    @pytest.mark.parametrize("optional", [("t2",), ("flair",), ("flair", "t1")])
    def test_optional_modalities_are_some_of_the_student(self, optional):
        with pytest.raises(ConfigError, match="optional modalities"):
            StudentConfig(("flair",) if optional == ("flair",) else ("flair", "t1"), 16, optional=optional)


class TestTraining:
    def test_further_modalities_join_late(self, monkeypatch):
        """Until then, what they show makes no difference."""
        config = StudentConfig(("flair", "t1"), 32, (), 8, (1, 2), ("t1",))
        images, masks = blobs(8)
        monkeypatch.setattr("anofpdm.student.student_batches.FURTHER_MISSING_SHARE", 0.0)

        def weights(t1, join):
            monkeypatch.setattr("anofpdm.student.train_student.FURTHER_FROM", join)
            pixels = np.concatenate([images, np.full_like(images, t1)], axis=1)
            data = pseudo_labels(lambda rows: pixels[rows], masks)
            training = StudentTrainingConfig(steps=4, batch=4, paste_share=0.0)
            network = train_student(config, data, training, CPU, further=("t1",))
            return torch.cat([one.flatten() for one in network.parameters()])

        assert torch.equal(weights(0.5, 1.0), weights(-0.5, 1.0))
        assert not torch.equal(weights(0.5, 0.5), weights(-0.5, 0.5))

    def test_a_student_learns_to_segment(self, trained):
        slices, masks = blobs(seed=9)
        logits, slice_logits = predict_slices(trained, lambda rows: slices[rows], far_apart(len(slices)), CPU)
        drawn = logits >= 0
        both = (drawn & masks).sum()
        assert 2 * both / (drawn.sum() + masks.sum()) > 0.9
        assert ((slice_logits >= 0) == masks.any((1, 2))).mean() > 0.95

    def test_mask_loss_is_cross_entropy_plus_dice(self):
        logits, mask = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[[1.0, 0.0]]])
        probability = 1 / (1 + np.exp([-2.0, 1.0]))
        entropy = -(np.log(probability[0]) + np.log(1 - probability[1])) / 2
        dice = 2 * probability[0] / (probability.sum() + 1)
        assert float(mask_loss(logits, mask)) == pytest.approx(entropy + 1 - dice)

    def test_unlabelled_slices_do_not_count_in_the_label_loss(self):
        slice_logits = torch.tensor([2.0, -1.0, 50.0])
        found = label_loss(slice_logits, torch.tensor([UNHEALTHY, HEALTHY, NULL]))
        assert float(found) == pytest.approx((np.log1p(np.exp(-2)) + np.log1p(np.exp(-1))) / 2)
        assert float(label_loss(slice_logits, torch.full((3,), NULL))) == 0

    def test_every_slice_is_used_once_per_epoch(self):
        rows = np.concatenate([rows_of_step(10, step, batch=4, seed=0) for step in range(5)])
        assert sorted(rows[:10]) == list(range(10))
        assert sorted(rows[10:]) == list(range(10))

    def test_training_ends_at_steps_or_minutes(self):
        assert StudentTrainingConfig(steps=10, minutes=1.0).fraction_done(5, 6.0) == 0.5
        assert StudentTrainingConfig(steps=100, minutes=1.0).fraction_done(5, 30.0) == 0.5
        with pytest.raises(ConfigError, match="--steps or --minutes"):
            StudentTrainingConfig(steps=None)

    def test_the_same_seed_gives_the_same_weights(self):
        slices, masks = blobs(8)
        data = pseudo_labels(lambda rows: slices[rows], masks)
        one, two = (train_student(SMALL, data, StudentTrainingConfig(steps=3, batch=4), CPU) for _ in range(2))
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b)


class TestDecisions:
    def test_a_mirrored_slice_gets_the_mirrored_prediction(self, trained):
        x = torch.from_numpy(blobs(4)[0])
        (logits, slice_logits), (mirrored, slice_mirrored) = (
            predict_logits(trained, x),
            predict_logits(trained, x.flip(-1)),
        )
        torch.testing.assert_close(mirrored, logits.flip(-1), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(slice_mirrored, slice_logits, rtol=1e-4, atol=1e-4)

    def test_the_threshold_admits_the_smallest_lesion(self):
        """A logit of 0; lower where fewer pixels reach it than a component must have."""
        logits = np.full((3, 128, 128), -9.0)
        logits[0, 20:30, 20:30] = 1.0  # 100 pixels
        logits[1, 20:30, 20:30] = -2.0
        logits[1, 22:25, 22:25] = 1.0  # 9 of them
        logits[2, 20:24, 20:24] = 1.0
        assert mask_thresholds(logits).tolist() == [0.0, -2.0, -9.0]
        assert mask(logits[:2], mask_thresholds(logits[:2])).sum((1, 2)).tolist() == [100, 100]

    def test_a_slice_smaller_than_the_smallest_lesion_has_a_threshold(self):
        assert mask_thresholds(np.ones((2, 4, 4)), 40 * 128 * 128).tolist() == [0, 0]

    def test_calibrated_on_labels_a_student_detects_lesions(self, trained):
        slices, masks = blobs(seed=3)
        labels = masks.any((1, 2)).astype(int)
        patients = np.arange(len(labels)) // 8
        calibration = fit_student_calibration(
            trained, lambda rows: slices[rows], labels, patients, far_apart(len(labels)), CPU
        )
        assert calibration.accuracy == 1.0
        assert calibration.detect_by == "both"
        student = Student(trained, calibration, "teacher", CPU)
        decisions = student.decide(lambda rows: slices[rows], far_apart(len(labels)))
        assert (decisions.detected == (labels == 1)).all()
        assert not decisions.masks[labels == 0].any()
        assert np.isnan(decisions.similarity).all()
        assert ((decisions.maps >= 0) & (decisions.maps <= 1)).all()

    def test_without_a_useful_slice_output_detection_is_by_pixels(self, trained):
        """For example if no training slice was labelled."""
        network = copy.deepcopy(trained)
        for parameter in network.whole.parameters():
            torch.nn.init.zeros_(parameter)
        slices, masks = blobs(seed=3)
        labels, patients = masks.any((1, 2)).astype(int), np.arange(len(masks)) // 8
        calibration = fit_student_calibration(
            network, lambda rows: slices[rows], labels, patients, far_apart(len(labels)), CPU
        )
        assert calibration.accuracy == 1.0
        assert calibration.detector.weights[1] == pytest.approx(0, abs=1e-9)
        again = StudentCalibration.from_dict(json.loads(json.dumps(calibration.to_dict())))
        decisions = Student(network, again, "teacher", CPU).decide(lambda rows: slices[rows], far_apart(len(labels)))
        assert (decisions.detected == (labels == 1)).all()

    def test_labels_of_whole_scans_are_enough_where_some_scans_are_healthy(self, trained):
        """Scans of the last patients are labelled unhealthy as a whole, and healthy slices of the others."""
        slices, masks = blobs(seed=3)
        truth, patients = masks.any((1, 2)).astype(int), np.arange(len(masks)) // 8
        suspected = patients >= patients.max() // 2
        positions = SlicePositions(patients.astype(str), np.arange(len(masks)) * 100.0)
        labels = np.where(suspected | (truth == UNHEALTHY), NULL, truth)
        calibration = fit_student_calibration(
            trained, lambda rows: slices[rows], labels, patients, positions, CPU, suspected
        )
        assert calibration.n_healthy + calibration.n_unhealthy == np.count_nonzero(suspected | (labels == HEALTHY))
        decisions = Student(trained, calibration, "teacher", CPU).decide(lambda rows: slices[rows], positions)
        assert (decisions.detected == (truth == 1)).mean() > 0.95

    def test_labelled_slices_rate_a_detector_where_others_are_estimated(self, trained):
        """Three quarters of the slices of unhealthy scans are not labelled; assumed unhealthy, they would lower it."""
        slices, masks = blobs(seed=3)
        truth, patients = masks.any((1, 2)).astype(int), np.arange(len(masks)) // 8
        suspected = np.random.default_rng(0).random(len(masks)) < 0.75
        positions = SlicePositions(patients.astype(str), np.arange(len(masks)) * 100.0)
        labels = np.where(suspected, NULL, truth)
        some = (trained, lambda rows: slices[rows], labels, patients, positions, CPU)
        calibration = fit_student_calibration(*some, suspected)
        assert calibration.auc == fit_student_calibration(*some).auc
        assert calibration.auc > 0.95
        assert calibration.n_healthy + calibration.n_unhealthy == len(masks)

    def test_labels_of_one_kind_are_refused(self, trained):
        slices, _ = blobs(4)
        with pytest.raises(CalibrationError, match="one kind is missing"):
            fit_student_calibration(
                trained, lambda rows: slices[rows], np.zeros(4, int), np.arange(4), far_apart(4), CPU
            )


class TestOnDisk:
    def student(self, network):
        return Student(network, StudentCalibration(DETECTOR, 0.9, 0.95, 5, 6), "abc", CPU)

    def test_round_trip(self, trained, tmp_path):
        save_student(tmp_path, self.student(trained), {"slices": 3})
        again = load_student(tmp_path, "abc", CPU)
        assert again.calibration.to_dict() == self.student(trained).calibration.to_dict()
        assert again.config == SMALL
        x = torch.from_numpy(blobs(2)[0])
        for one, two in zip(predict_logits(again.network, x), predict_logits(trained, x), strict=True):
            assert torch.equal(one, two)

    def test_a_model_without_a_student(self, tmp_path):
        assert load_student(tmp_path, "abc", CPU) is None

    def test_another_models_student_is_refused(self, trained, tmp_path):
        save_student(tmp_path, self.student(trained), {})
        with pytest.raises(ModelError, match="another model"):
            load_student(tmp_path, "other", CPU)

    @pytest.mark.parametrize("wrong", [{"calibration": {"cut": 0.3}}, {"network": {"depth": 3}}, {"network": None}])
    def test_an_older_version_or_a_damaged_file_is_refused(self, trained, tmp_path, wrong):
        save_student(tmp_path, self.student(trained), {})
        weights, payload, _ = checkpoint.load_model(tmp_path / "student")
        payload.pop("sha256", None)
        checkpoint.save_model(tmp_path / "student", weights, {**payload, **wrong})
        with pytest.raises(ModelError, match="distill again"):
            load_student(tmp_path, "abc", CPU)

    @pytest.mark.parametrize("detect_by", DetectBy)
    def test_a_detector_of_another_count_of_numbers_is_refused(self, trained, detect_by):
        payload = self.student(trained).calibration.to_dict() | {"detect_by": detect_by}
        payload["detector"] |= {name: [1.0] * (3 - detect_by.numbers) for name in ("centre", "scale", "weights")}
        with pytest.raises(ValueError, match=f"{detect_by.numbers} per slice"):
            StudentCalibration.from_dict(payload)

    @pytest.mark.parametrize("stored", [WeightFormat.FLOAT16, WeightFormat.INT8])
    def test_smaller_weights_predict_nearly_the_same(self, trained, tmp_path, stored):
        save_student(tmp_path, self.student(trained), {}, stored)
        again = load_student(tmp_path, "abc", CPU)
        x = torch.from_numpy(blobs(2)[0])
        torch.testing.assert_close(predict_logits(again.network, x), predict_logits(trained, x), rtol=0.02, atol=0.05)


def test_impossible_configurations_are_refused():
    with pytest.raises(ConfigError, match="cannot be halved"):
        StudentConfig(("t1",), 36, width=8, multipliers=(1, 2, 4, 4))
    with pytest.raises(ConfigError, match="divisible by 8"):
        dataclasses.replace(SMALL, width=12)


def test_neighbours_add_input_channels():
    config = dataclasses.replace(SMALL, neighbours_mm=(-4.0, 4.0))
    logits, slice_logits = StudentNet(config)(torch.zeros(1, 3, 32, 32))
    assert (logits.shape, slice_logits.shape) == ((1, 32, 32), (1,))


@pytest.mark.parametrize("multipliers", [(1,), (1, 2), (1, 2, 4, 4)])
def test_the_forward_pass_on_a_cpu_is_that_of_the_network(multipliers):
    torch.manual_seed(3)
    network = StudentNet(StudentConfig(("flair", "t2"), 24, (-2.0, 2.0), width=16, multipliers=multipliers)).eval()
    x = torch.rand(3, 6, 24, 40) * 2 - 1
    with torch.no_grad():
        expected, found = network(x), CpuStudent(network)(x)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_threads_over_slices_change_nothing():
    torch.manual_seed(4)
    network = StudentNet(StudentConfig(("flair",), 24, (-2.0, 2.0), width=8, multipliers=(1, 2))).eval()
    on_cpu = CpuStudent(network)
    for count in (1, 2, 5):
        x = torch.rand(count, 3, 24, 24) * 2 - 1
        for one, other in zip(predict_passes(network, x), on_cpu.passes(x), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
            assert not other.requires_grad
