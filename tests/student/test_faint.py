"""Thresholds of faint lesions, on logits drawn by hand and against a search voxel by voxel."""

import json
import re
import warnings

import numpy as np
import pytest
import torch
from anofpdm.student.faint import LOWEST, lesion_peaks, lower_thresholds

from anofpdm.errors import ScanWarning
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.report.result_page import render_report
from anofpdm.segment.model import Model
from anofpdm.student.student import Student, StudentCalibration
from anofpdm.student.student_network import StudentConfig, StudentNet
from tests import toys

NOTHING = -9.0


def logits(*regions):
    """Slices with squares: (first row, last row, logit)."""
    images = np.full((len(regions), 24, 24), NOTHING, np.float32)
    for image, squares in zip(images, regions, strict=True):
        for first, last, value in squares:
            image[first:last, first:last] = value
    return images


def along(count, scans=None):
    return SlicePositions(np.zeros(count) if scans is None else np.array(scans), 2.0 * np.arange(count))


def test_the_threshold_is_the_peak_of_the_lesion_minus_the_span_below_0_only():
    images = logits([(2, 8, 2.0), (3, 5, 3.0)], [(2, 8, -1.0)], [(2, 8, 7.0)])
    thresholds = lower_thresholds(images[:2], along(2), 5.0)
    assert set(thresholds[:, 2:8, 2:8].ravel()) == {-2.0}  # also in the slice whose own logits are below 0
    assert not thresholds[:, 9:].any()
    assert not lower_thresholds(images, along(3), 5.0).any()  # a lesion with a peak of 7 is connected


def test_no_lesion_is_lowered_that_stays_below_0_or_below_the_lowest_threshold():
    assert not lower_thresholds(logits([(2, 8, -0.1)]), along(1), 5.0).any()
    assert lower_thresholds(logits([(2, 8, 0.1)]), along(1), 5.0).min() == LOWEST


def test_without_a_span_thresholds_are_0():
    assert not lower_thresholds(logits([(2, 8, 1.0)]), along(1), None).any()


def test_lesions_of_other_scans_and_the_order_of_rows_do_not_matter():
    images = logits([(2, 8, 1.0)], [(2, 8, 2.0)], [(2, 8, 4.5)])
    apart = lower_thresholds(images, along(3, [0, 0, 1]), 5.0)
    assert [one.min() for one in apart] == [-3.0, -3.0, -0.5]
    order = np.array([2, 0, 1])
    positions = along(3, [0, 0, 1]).take(order)
    np.testing.assert_array_equal(lower_thresholds(images[order], positions, 5.0), apart[order])


def test_peaks_are_those_of_a_search_from_voxel_to_voxel():
    images = np.random.default_rng(0).normal(-5, 2, (4, 12, 12)).astype(np.float32)
    found = lesion_peaks(images)
    expected = np.full(images.shape, -np.inf, np.float32)
    for start in map(tuple, np.argwhere(images > LOWEST)):
        seen, front = {start}, [start]
        while front:
            z, y, x = front.pop()
            box = np.argwhere(images[max(z - 1, 0) : z + 2, max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2] > LOWEST)
            near = {tuple(one) for one in box + np.maximum([z - 1, y - 1, x - 1], 0)} - seen
            seen |= near
            front += near
        expected[start] = max(images[one] for one in seen)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 4


class KnownStudent(Student):
    """Its logits rise with the brightness of FLAIR; a slice is unhealthy where one of them is above 0."""

    def decide(self, pixels, positions, progress=None):  # noqa: ARG002
        logits = 20 * pixels(np.arange(len(positions.scans)))[:, 0] - 8
        slice_logits = np.where(logits.max(axis=(1, 2)) > 0, 5.0, -5.0)
        return self.decide_from(np.stack([logits, logits]), np.stack([slice_logits, slice_logits]), positions)


@pytest.fixture(scope="module")
def with_a_faint_lesion(tmp_path_factory):
    """Segmentation of a head with a bright ball on one side, and a faint one, slightly higher, on the other."""
    shape, side = (40, 40, 30), 40
    affine = toys.affine_of(spacing=(4.0, 4.0, 4.0), shape=shape)
    bright, faint = (toys.ball(affine, shape, centre, 18) for centre in ((30, 0, -10), (-30, 0, 6)))
    head = np.where(toys.ball(affine, shape, (0, 0, 0), 56), 100, 0) + 100 * bright + 50 * faint
    file = toys.save(tmp_path_factory.mktemp("scan") / "p_flair.nii.gz", head.astype(np.int16), affine)
    detector = CurveDetector(np.zeros(1), np.ones(1), np.ones(1), offset=0.0, strength=1.0)
    calibration = StudentCalibration(detector, 1.0, 1.0, 5, 5, detection_mm=0.0, smallest=4, faint_span=5.0)
    network = StudentNet(StudentConfig(("flair",), side, (-4.0, 4.0), 8, (1, 2))).eval()
    student = KnownStudent(network, calibration, "teacher", torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScanWarning)
        return Model(None, student).segment({"flair": file})


def test_the_threshold_of_a_slice_is_the_lowest_that_its_mask_was_drawn_with(with_a_faint_lesion):
    decisions, kinds = with_a_faint_lesion.decisions, set()
    for row, maps, mask in zip(with_a_faint_lesion.slices, decisions.maps, decisions.masks, strict=True):
        if mask.any():
            lowest = float(row["threshold"])
            assert maps[mask].min() >= lowest - 1e-6
            halves = [maps[:, half][mask[:, half]] for half in (slice(20), slice(20, None))]
            kinds.add((*(half.size > 0 for half in halves), lowest < 0.5))
    # The patient's right is on the left: the bright ball alone, both, and the faint one alone.
    assert kinds == {(True, False, False), (True, True, True), (False, True, True)}


def test_the_report_names_the_thresholds_of_faint_lesions(with_a_faint_lesion):
    page = render_report(with_a_faint_lesion, "p").decode()
    slices = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["slices"]
    alone, together = set(), set()
    for one, row in zip(slices, with_a_faint_lesion.slices, strict=True):
        threshold = f"{float(row['threshold']):.3g}"
        alone.add(f"at least {threshold} (lowered from 0.5, as the lesion is faint or small" in one["decision"])
        together.add(f"at least {threshold} to 0.5 (lesion probability, lower where a" in one["decision"])
    assert alone == together == {True, False}
