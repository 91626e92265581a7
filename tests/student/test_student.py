"""The student: inputs, training, calibration, files."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anofpdm.errors import ConfigError, ModelError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.network import checkpoint
from anofpdm.student.fit_detector import fit_student_calibration
from anofpdm.student.predict import CpuStudent, predict_passes
from anofpdm.student.student import Student, load_student, save_student
from anofpdm.student.student_batches import draw_missing, paste_lesions, training_batches
from anofpdm.student.student_network import (
    StudentConfig,
    StudentNet,
    default_neighbours_mm,
    fill_missing,
    mirror_passes,
    neighbour_rows,
    stack_slices,
)
from anofpdm.student.train_student import StudentTrainingConfig, label_loss, mask_loss, train_student
from anofpdm.util.artifacts import to_plain
from tests import toys
from tests.optional_toys import make_student
from tests.student.student_toys import CPU, SMALL, adjacent, blobs, pseudo_labels


def curve_detector(count):
    return CurveDetector(np.zeros(count), np.ones(count), np.ones(count), offset=0.0, strength=1.0)


@pytest.fixture(scope="module")
def trained():
    return train_student(SMALL, pseudo_labels(*blobs()), StudentTrainingConfig(200, batch=8, learning_rate=3e-3), CPU)


class TestInputs:
    def test_neighbours_are_the_nearest_slices_of_the_same_scan(self):
        order = np.array([3, 0, 4, 2, 1])
        positions = SlicePositions(np.array([*"aaabb"])[order], np.array([0.0, 2, 4, 0, 4])[order])
        # 2 mm away is near enough to stand for 4, nothing at all for what lies outside the scan.
        rows = order[neighbour_rows(positions, (-4.0, 4.0))][np.argsort(order)]
        assert rows.tolist() == [[0, 0, 2], [1, 0, 2], [2, 0, 2], [3, 3, 4], [4, 3, 4]]

    def test_default_neighbours_are_one_slice_on_each_side(self):
        thick = SlicePositions(np.array([*"aaab"]), np.array([0.0, 6, 12, 0]))
        assert default_neighbours_mm(thick) == (-6.0, 6.0)
        thin = SlicePositions(np.array([*"aaa"]), np.array([0.0, 1, 2]))
        assert default_neighbours_mm(thin) == default_neighbours_mm(SlicePositions.unrelated(1)) == (-2.0, 2.0)

    def test_slices_are_stacked_in_order(self):
        slices = np.arange(6.0, dtype=np.float32).reshape(3, 2, 1, 1)
        stacked = stack_slices(slices.__getitem__, np.array([[1, 0], [2, 2]]))
        assert stacked[:, :, 0, 0].tolist() == [[2, 3, 0, 1], [4, 5, 4, 5]]

    def test_missing_modalities_are_background(self):
        filled = fill_missing(np.arange(2.0).reshape(1, 2, 1, 1), ["t2", "t1"], ["t1", "flair", "t2"])
        assert filled.ravel().tolist() == [1, -1, 0]

    def test_slice_and_mask_are_augmented_together(self):
        _, masks = blobs(8)
        data = pseudo_labels(np.where(masks[:, None], 0.9, -0.9).astype(np.float32), masks)
        x, mask, _ = next(training_batches(data, 8, 1, CPU)).augment()
        assert (x[:, 0][mask > 0.95] > 0.3).float().mean() > 0.99
        assert (x[:, 0][mask < 0.05] < -0.3).float().mean() > 0.99
        assert not torch.equal(mask, torch.from_numpy(masks).float())

    def test_lesions_are_pasted_into_slices_without_one(self):
        x, mask = torch.full((3, 1, 16, 16), -0.5), torch.zeros(3, 16, 16)
        x[0, :, 4:12, 4:12], mask[0, 4:12, 4:12] = 0.8, 1
        labels = torch.tensor([UNHEALTHY, HEALTHY, HEALTHY])
        images, masks, after = paste_lesions(x, mask, labels, torch.ones(3, dtype=torch.bool))
        assert torch.equal(masks[1], mask[0])
        assert images[1, 0, 8, 8] > images[1, 0, 0, 8] + 0.5
        assert after.tolist() == [UNHEALTHY, NULL, HEALTHY]  # the third has a neighbour without a lesion
        for unchanged in (0, 2):
            torch.testing.assert_close(images[unchanged], x[unchanged])
            torch.testing.assert_close(masks[unchanged], mask[unchanged])

    def test_missing_modalities_are_background_with_their_neighbours_and_others_are_unchanged(self):
        pixels = np.random.default_rng(0).uniform(-0.9, 0.9, (20, 3, 16, 16)).astype(np.float32)
        data = pseudo_labels(pixels, np.zeros((20, 16, 16), bool), adjacent(20))
        whole, some = (next(training_batches(given, 20, 3, CPU)) for given in (data, replace(data, optional=[0, 2])))
        assert not whole.missing.any()
        missing = some.missing.view(20, 3, 3)  # slice, offset, modality
        assert torch.equal(missing[:, 0], missing[:, 1])
        x, before = some.augment()[0], whole.augment()[0]
        assert (x[some.missing] == -1).all()
        assert torch.equal(x[~some.missing], before[~some.missing])

    @pytest.mark.parametrize(
        ("late", "each", "together"), [([], 0.25, 0.25**2), ([1, 2], 1 - 0.75 * 0.5, 0.5 + 0.5 * 0.25**2)]
    )
    def test_optional_modalities_are_missing_in_a_quarter_of_the_slices_late_ones_in_half(self, late, each, together):
        """Each on its own in a quarter; in half of the slices all late ones together."""
        data = replace(pseudo_labels(*blobs(2)), optional=[1, 2], late=late)
        missing = draw_missing(4000, 3, data, torch.Generator().manual_seed(0))
        np.testing.assert_allclose(missing.float().mean(0), [0, each, each], atol=0.03)
        assert float(missing[:, 1:].all(1).float().mean()) == pytest.approx(together, abs=0.03)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"modalities": ()}, "needs modalities"), ({"multipliers": ()}, "multipliers"),
        ({"modalities": ("t1", "t1")}, "distinct"),
        ({"optional": ("t2",)}, "optional modalities"), ({"optional": ("flair",)}, "optional modalities"),
        ({"width": 12}, "divisible by 8"), ({"width": 0}, "from 1 to"), ({"neighbours_mm": (np.nan,)}, "finite"),
        ({"size": 36, "multipliers": (1, 2, 4, 4)}, "can be halved 3 times"),
    ],
)  # fmt: skip
def test_impossible_configurations_are_refused(words, match):
    with pytest.raises(ConfigError, match=match):
        replace(SMALL, **words)


class TestNetwork:
    @pytest.mark.parametrize("multipliers", [(1,), (1, 2, 4, 4)])
    def test_the_forward_pass_on_a_cpu_is_that_of_the_network(self, multipliers):
        """Whatever the number of slices in a batch, which are shared by threads."""
        torch.manual_seed(3)
        network = StudentNet(StudentConfig(("flair", "t2"), 24, (-2.0, 2.0), width=16, multipliers=multipliers)).eval()
        on_cpu = CpuStudent(network)
        for count in (1, 5):
            x = torch.rand(count, 6, 24, 40) * 2 - 1
            logits = on_cpu.passes(x)
            with torch.no_grad():
                expected = mirror_passes(network, x)
            torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
            assert logits[0].shape == (count, 2, 24, 40)
            assert not logits[0].requires_grad

    def test_both_passes_of_a_mirrored_slice_are_swapped(self, trained):
        pixels, rows = blobs(4)[0], np.arange(4)[:, None]
        passes, slice_passes = predict_passes(trained, pixels.__getitem__, rows, CPU)
        mirrored, slice_mirrored = predict_passes(trained, pixels[..., ::-1].copy().__getitem__, rows, CPU)
        np.testing.assert_allclose(mirrored, passes[:, ::-1, :, ::-1], atol=1e-4)
        np.testing.assert_allclose(slice_mirrored, slice_passes[:, ::-1], atol=1e-4)


class TestTraining:
    def test_further_modalities_join_late(self, monkeypatch):
        """Until then, what they show makes no difference."""
        config = StudentConfig(("flair", "t1"), 16, (), 8, (1, 2), ("t1",))
        images, masks = blobs(8, 16)
        monkeypatch.setattr("anofpdm.student.student_batches.LATE_MISSING_SHARE", 0.0)
        monkeypatch.setattr("anofpdm.student.student_batches.PASTE_SHARE", 0.0)

        def weights(t1, join):
            monkeypatch.setattr("anofpdm.student.train_student.LATE_FROM", join)
            data = pseudo_labels(np.concatenate([images, np.full_like(images, t1)], axis=1), masks)
            data = replace(data, optional=[1], late=[1])
            network = train_student(config, data, StudentTrainingConfig(steps=4, batch=4), CPU)
            return torch.cat([parameter.flatten() for parameter in network.parameters()])

        assert torch.equal(weights(0.5, 1.0), weights(-0.5, 1.0))
        assert not torch.equal(weights(0.5, 0.5), weights(-0.5, 0.5))

    def test_mask_loss_is_cross_entropy_plus_dice(self):
        logits, mask = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[[1.0, 0.0]]])
        probability = 1 / (1 + np.exp([-2.0, 1.0]))
        entropy = -(np.log(probability[0]) + np.log(1 - probability[1])) / 2
        dice = 2 * probability[0] / (probability.sum() + 1)
        assert float(mask_loss(logits, mask)) == pytest.approx(entropy + 1 - dice)

    def test_unlabelled_slices_do_not_count_in_the_label_loss(self):
        loss = label_loss(torch.tensor([2.0, -1.0, 50.0]), torch.tensor([UNHEALTHY, HEALTHY, NULL]))
        assert float(loss) == pytest.approx((np.log1p(np.exp(-2)) + np.log1p(np.exp(-1))) / 2)
        assert float(label_loss(torch.tensor([50.0]), torch.tensor([NULL]))) == 0


class TestCalibration:
    slices, masks = blobs(seed=3)
    truth, patients = masks.any((1, 2)).astype(int), np.arange(len(masks)) // 8

    def fit(self, network, labels, suspected=None):
        """The calibration, and which slices are then detected; slices are far apart."""
        rows, scans = np.arange(len(labels)), self.patients.astype(str)
        cohort = SimpleNamespace(
            rows=lambda _split: rows, labels=labels, patients=self.patients, scans=scans, indices=rows,
            suspected=np.zeros(len(rows), bool) if suspected is None else suspected, modalities=("flair",),
            spacing_mm=np.full(len(rows), 100.0), manifest=SimpleNamespace(expects={}), pixels=self.slices.__getitem__,
        )  # fmt: skip
        calibration = fit_student_calibration(network, cohort, CPU)
        positions = SlicePositions(scans, rows * 100.0)
        return calibration, Student(network, calibration, "teacher", CPU).decide(self.slices.__getitem__, positions)

    def test_calibrated_on_labels_a_student_detects_lesions(self, trained):
        calibration, decisions = self.fit(trained, self.truth)
        assert calibration.accuracy == 1.0
        assert (decisions.detected == (self.truth == 1)).all()
        assert toys.dice(decisions.masks, self.masks) > 0.9
        assert decisions.evidence is None
        assert ((decisions.maps >= 0) & (decisions.maps <= 1)).all()

    def test_without_a_useful_slice_output_detection_is_by_pixels(self, trained):
        """For example if no training slice was labelled."""
        network = copy.deepcopy(trained)
        for parameter in network.whole.parameters():
            torch.nn.init.zeros_(parameter)
        calibration, decisions = self.fit(network, self.truth)
        assert calibration.detector.weights[1] == pytest.approx(0, abs=1e-9)
        assert (decisions.detected == (self.truth == 1)).all()

    def test_labels_of_whole_scans_are_enough_where_some_scans_are_healthy(self, trained):
        """Scans of the last patients are labelled unhealthy as a whole, and healthy slices of the others."""
        suspected = self.patients >= self.patients.max() // 2
        labels = np.where(suspected | (self.truth == UNHEALTHY), NULL, self.truth)
        calibration, decisions = self.fit(trained, labels, suspected)
        assert calibration.n_healthy + calibration.n_unhealthy == np.count_nonzero(suspected | (labels == HEALTHY))
        assert (decisions.detected == (self.truth == 1)).mean() > 0.95

    def test_labelled_slices_rate_a_detector_where_others_are_estimated(self, trained):
        """Three quarters of the slices of unhealthy scans are not labelled; assumed unhealthy, they would lower it."""
        suspected = np.random.default_rng(0).random(len(self.masks)) < 0.75
        labels = np.where(suspected, NULL, self.truth)
        calibration, _ = self.fit(trained, labels, suspected)
        assert calibration.auc == self.fit(trained, labels)[0].auc > 0.95
        assert calibration.n_healthy + calibration.n_unhealthy == len(self.masks)


class TestOnDisk:
    def test_round_trip(self, tmp_path):
        student = make_student()
        student = replace(student, calibration=replace(student.calibration, accuracy=np.nan), foreground=(0.2, 0.3))
        save_student(tmp_path, student, {"slices": 3})
        again = load_student(tmp_path, "teacher", CPU)
        assert again.config == student.config
        assert (again.foreground, again.expects, again.typical) == ((0.2, 0.3), student.expects, None)
        assert str(again.calibration) == str(student.calibration)
        for parameters in zip(again.network.parameters(), student.network.parameters(), strict=True):
            assert torch.equal(*parameters)

    def test_another_models_student_is_refused(self, tmp_path):
        assert load_student(tmp_path, "abc", CPU) is None
        save_student(tmp_path, make_student(), {})
        with pytest.raises(ModelError, match="another model"):
            load_student(tmp_path, "other", CPU)

    @pytest.mark.parametrize(
        ("part", "wrong"),
        [("calibration", {"cut": 0.3}), ("calibration", {"context_mm": -1.0}), ("calibration", {"smallest": -1}),
         ("calibration", {"detection_mm": (2.0, -1.0)}), ("calibration", {"faint_span": 0.0}),
         ("calibration", {"detector": to_plain(curve_detector(1))}), ("network", {"depth": 3}),
         ("network", None), ("foreground", (1, 2)), ("typical", {"flair": 1.0}), ("unknown", 1)],
    )  # fmt: skip
    def test_an_older_version_or_a_damaged_file_is_refused(self, tmp_path, part, wrong):
        save_student(tmp_path, make_student(), {})
        weights, payload, _ = checkpoint.load_model(tmp_path / "student")
        payload[part] = {**payload.get(part, {}), **wrong} if isinstance(wrong, dict) else wrong
        checkpoint.save_model(tmp_path / "student", weights, payload)
        with pytest.raises(ModelError, match="distill again"):
            load_student(tmp_path, "teacher", CPU)
